//! Fields of the node memory: the place and type of each, who writes it, and how long its content counts.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The writer of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The agent of the node.
    Agent,
    /// Other ranks, at any time; the rank may clear it.
    Peers,
    /// The rank itself.
    Rank,
}

/// How long the content of a field counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// For one life of the rank. The agent clears the rank's words before its next life begins, and writes its own
    /// again.
    Life,
    /// Until the image in a slot is useless and another gets the slot.
    Image,
    /// Until all ranks return to a wave, for which the memory is emptied, or the job ends.
    Memory,
    /// For all lives in this run of the job, even when the memory is emptied.
    Run,
}

/// The parts of the node memory that have fields.
#[derive(Debug, Clone, Copy)]
pub struct Header;
#[derive(Debug, Clone, Copy)]
pub struct Control;
#[derive(Debug, Clone, Copy)]
pub struct Arena;

mod sealed {
    pub trait Sealed {}

    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// A word that one store writes.
pub trait Word: Copy + sealed::Sealed {
    /// The type that processes share, of the same size and alignment.
    type Atomic;

    fn from_u64(word: u64) -> Self;
    fn to_u64(self) -> u64;
}

impl Word for u64 {
    type Atomic = AtomicU64;

    fn from_u64(word: u64) -> Self {
        word
    }

    fn to_u64(self) -> u64 {
        self
    }
}

impl Word for u32 {
    type Atomic = AtomicU32;

    fn from_u64(word: u64) -> Self {
        word as u32
    }

    fn to_u64(self) -> u64 {
        self.into()
    }
}

/// A `u32` length, and behind it a text of at most so many bytes.
#[derive(Debug, Clone, Copy)]
pub struct Text<const BYTES: usize>;

impl<const BYTES: usize> Text<BYTES> {
    /// Bytes before the text.
    pub const HEAD: usize = size_of::<u32>();
}

/// The types that fields have.
pub trait Content {
    const BYTES: usize;
    /// How many bytes to write to clear it.
    const CLEARED: usize = Self::BYTES;
}

impl Content for u64 {
    const BYTES: usize = size_of::<Self>();
}

impl Content for u32 {
    const BYTES: usize = size_of::<Self>();
}

impl Content for u8 {
    const BYTES: usize = size_of::<Self>();
}

impl<T: Content, const N: usize> Content for [T; N] {
    const BYTES: usize = T::BYTES * N;
}

impl<const BYTES: usize> Content for Text<BYTES> {
    const BYTES: usize = Text::<BYTES>::HEAD + BYTES;
    const CLEARED: usize = Text::<BYTES>::HEAD;
}

/// A place in one part of the node memory, and the type of its content.
pub struct Field<Part, T> {
    /// Offset in the part, in bytes.
    pub at: usize,
    what: PhantomData<(Part, T)>,
}

impl<Part, T> Clone for Field<Part, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Part, T> Copy for Field<Part, T> {}

impl<Part, T> Field<Part, T> {
    pub(super) const fn new(at: usize) -> Self {
        Field { at, what: PhantomData }
    }
}

impl<Part, T: Content, const N: usize> Field<Part, [T; N]> {
    /// One of several items.
    #[inline]
    pub const fn item(self, index: usize) -> Field<Part, T> {
        assert!(index < N, "there is no such item");
        Field::new(self.at + index * T::BYTES)
    }
}

/// A field in the list of all fields.
#[derive(Debug, Clone, Copy)]
pub struct Declared {
    pub name: &'static str,
    pub at: usize,
    pub bytes: usize,
    /// How many bytes to write to clear it.
    pub cleared: usize,
    pub owner: Owner,
    pub lifetime: Lifetime,
}

impl Declared {
    /// Whether it is cleared before a life of the rank begins. That holds for the rank's own words about one life, and
    /// not for words that neighbours go on writing.
    pub fn is_cleared_before_a_life(&self) -> bool {
        (self.owner, self.lifetime) == (Owner::Rank, Lifetime::Life)
    }

    /// The places that clearing it writes.
    pub fn to_clear(&self) -> Range<usize> {
        self.at..self.at + self.cleared
    }
}

/// Declares the fields of one part of the node memory, and the list of them.
macro_rules! fields {
    ($part:ident: $($(#[$doc:meta])* $owner:ident $lifetime:ident $name:ident: $what:ty = $at:expr;)*) => {
        $($(#[$doc])* pub const $name: super::Field<super::$part, $what> = super::Field::new($at);)*

        /// All of them.
        pub const ALL: &[super::Declared] = &[$(super::Declared {
            name: stringify!($name),
            at: $name.at,
            bytes: <$what as super::Content>::BYTES,
            cleared: <$what as super::Content>::CLEARED,
            owner: super::Owner::$owner,
            lifetime: super::Lifetime::$lifetime,
        }),*];
    };
}
pub(super) use fields;
