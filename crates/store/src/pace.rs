//! Sends so many bytes a second, and no more.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The bytes that may be sent, over all that share it.
pub struct Pace {
    bytes_per_second: f64,
    free_at: Mutex<Option<Instant>>,
}

impl Pace {
    pub fn new(bytes_per_second: u64) -> Pace {
        Pace {
            bytes_per_second: bytes_per_second.max(1) as f64,
            free_at: Mutex::new(None),
        }
    }

    /// How long to wait before so many bytes are sent.
    pub fn wait_for(&self, bytes: usize, now: Instant) -> Duration {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let start = free_at.map_or(now, |free_at| free_at.max(now));
        *free_at = Some(start + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second));
        start - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_bytes_take_their_time() {
        let pace = Pace::new(1000);
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        assert_eq!(pace.wait_for(500, at(0)), Duration::ZERO);
        assert_eq!(pace.wait_for(500, at(0)), Duration::from_millis(500));
        assert_eq!(pace.wait_for(500, at(700)), Duration::from_millis(300));
        // A pause is not made up for.
        assert_eq!(pace.wait_for(500, at(9000)), Duration::ZERO);
    }
}
