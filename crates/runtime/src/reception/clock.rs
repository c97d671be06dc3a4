//! The time by which late peers are cut off.

/// The machine's clock.
#[cfg(not(test))]
#[derive(Debug, Clone)]
pub struct Clock;

#[cfg(not(test))]
impl Clock {
    pub fn new() -> Clock {
        Clock
    }

    pub fn now(&self) -> std::time::Instant {
        std::time::Instant::now()
    }
}

#[cfg(test)]
pub use tests::Clock;

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    /// It stands still until a test puts it forward: a slow machine makes no peer late.
    #[derive(Debug, Clone)]
    pub struct Clock(Arc<Mutex<Instant>>);

    impl Clock {
        pub fn new() -> Clock {
            Clock(Arc::new(Mutex::new(Instant::now())))
        }

        pub fn now(&self) -> Instant {
            *self.0.lock().unwrap()
        }

        pub fn put_forward(&self, time: Duration) {
            *self.0.lock().unwrap() += time;
        }
    }
}
