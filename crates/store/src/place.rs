//! The interface of all places.

use std::time::SystemTime;

use crate::error::Error;

/// Bytes of one object, at most. Chunks have some MiB; the list of a node's files may be longer.
pub const MOST_BYTES: u64 = 256 << 20;

/// An object, or a job, in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The last part of its name.
    pub name: String,
    pub bytes: u64,
    /// When it was put, by the clock of the place: comparable with other times of the same place only.
    pub modified: SystemTime,
}

/// Keeps objects: names with some bytes, as [`name`](crate::name) describes.
///
/// - An object is there with all its bytes, or not at all, whatever dies when.
/// - What was put, is listed and can be read by everybody from then on; what was deleted, by nobody. (Object stores of
///   today and local, Lustre, GPFS and BeeGFS file systems are so. [`gc`](crate::Store::gc) depends on it.)
/// - Any process may do anything at any time.
/// - A call that has failed may have had its effect; to repeat it does no harm.
pub trait Place: Send + Sync {
    /// What to call it in messages: what the user has written.
    fn shown(&self) -> &str;

    /// Puts an object, also over another of that name. Power may fail after [`Place::settle`] only.
    ///
    /// # Errors
    /// It cannot be done; whether the object is there is unknown then.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), Error>;

    /// All that was put for this job outlives a loss of power.
    ///
    /// # Errors
    /// That is not certain.
    fn settle(&self, job: &str) -> Result<(), Error>;

    /// The bytes of an object, at most [`MOST_BYTES`].
    ///
    /// # Errors
    /// It is not there, cannot be read, or is too large.
    fn get(&self, name: &str) -> Result<Vec<u8>, Error>;

    /// Whether there is such an object.
    ///
    /// # Errors
    /// That cannot be found out.
    fn has(&self, name: &str) -> Result<bool, Error>;

    /// The objects of `JOB/FOLDER`, or, without a folder, all jobs. Order is any; a missing folder is an empty one.
    ///
    /// # Errors
    /// The list would not be complete.
    fn list(&self, folder: &str) -> Result<Vec<Entry>, Error>;

    /// Removes an object. It is no error if there is none.
    ///
    /// # Errors
    /// It may still be there.
    fn delete(&self, name: &str) -> Result<(), Error>;

    /// Removes what is left of a job without objects, and what died writers have left in it. `all`: nobody writes.
    ///
    /// # Errors
    /// Something stays.
    fn clear(&self, job: &str, all: bool) -> Result<(), Error>;
}
