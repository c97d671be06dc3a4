//! The ready bits of a rank. With them others tell it that channels to it may have news. Each user of the memory has
//! its own way to a word of the rank's control: `word`.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{Control, Field, control};

/// Says that the channel from rank `source` has something new. Call after publishing, and then wake the rank.
#[inline]
pub fn say<'a>(source: usize, word: impl Fn(Field<Control, u64>) -> &'a AtomicU64) {
    let (place, bit) = (source / 64, 1u64 << (source % 64));
    let ready = word(control::READY.item(place));
    // Orders the publishing store before the look at the bit. Otherwise a receiver that clears the bit and then looks
    // at the channel could miss both.
    fence(Ordering::SeqCst);
    if ready.load(Ordering::Relaxed) & bit == 0 {
        ready.fetch_or(bit, Ordering::SeqCst);
        word(control::READY_SUMMARY).fetch_or(1 << place, Ordering::SeqCst);
    }
}

/// Takes every channel that may have news: calls `found` with each source.
#[inline]
pub fn take<'a>(word: impl Fn(Field<Control, u64>) -> &'a AtomicU64, mut found: impl FnMut(usize)) {
    let summary = word(control::READY_SUMMARY);
    if summary.load(Ordering::Acquire) == 0 {
        return;
    }
    let mut places = summary.swap(0, Ordering::SeqCst);
    while places != 0 {
        let place = places.trailing_zeros() as usize;
        places &= places - 1;
        let mut bits = word(control::READY.item(place)).swap(0, Ordering::SeqCst);
        while bits != 0 {
            found(place * 64 + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
}
