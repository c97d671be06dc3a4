//! Windows and files. For each stands a communicator of this library, of the same members: it has the errors, it is
//! revoked, and it is the one that MPI makes the object from.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::layer;
use crate::mpi::{Comm, Word, pmpi};
use crate::provider::{self, From};

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Object {
    Window(c_int),
    File(Word),
}

static OBJECTS: Mutex<Option<HashMap<Object, Comm>>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<HashMap<Object, Comm>>> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Object {
    /// The communicator that stands for it; none: it is not known.
    pub fn comm(self) -> Option<Comm> {
        lock().get_or_insert_default().get(&self).copied()
    }

    /// Why no call on it can end well: the communicator that stands for it, and a class of errors.
    #[inline]
    pub fn trouble(self) -> Option<(Comm, c_int)> {
        match provider::news() {
            0 => None,
            _ => self.comm().and_then(|comm| Some((comm, layer::trouble(comm)?))),
        }
    }

    /// The communicator that stands for it, if it is revoked.
    #[inline]
    pub fn revoked(self) -> Option<Comm> {
        match provider::news() {
            0 => None,
            _ => self.comm().filter(|comm| layer::is_revoked(*comm)),
        }
    }

    /// `comm` stands for it.
    pub fn note(self, comm: Comm) {
        lock().get_or_insert_default().insert(self, comm);
    }

    pub fn forget(self) {
        lock().get_or_insert_default().remove(&self);
    }

    /// What the provider must know of a call on it.
    pub fn place(self, comm: Comm) -> From {
        let context = layer::context(comm);
        match self {
            Object::Window(_) => From::Window(context),
            Object::File(_) => From::File(context),
        }
    }

    pub fn get_handler(self, handler: &mut c_int) {
        match self {
            Object::Window(win) => pmpi!(MPI_Win_get_errhandler(win => c_int, handler => *mut c_int)),
            Object::File(file) => pmpi!(MPI_File_get_errhandler(file => Word, handler => *mut c_int)),
        };
    }

    pub fn set_handler(self, handler: c_int) {
        match self {
            Object::Window(win) => pmpi!(MPI_Win_set_errhandler(win => c_int, handler => c_int)),
            Object::File(file) => pmpi!(MPI_File_set_errhandler(file => Word, handler => c_int)),
        };
    }

    pub fn call_handler(self, class: c_int) {
        match self {
            Object::Window(win) => pmpi!(MPI_Win_call_errhandler(win => c_int, class => c_int)),
            Object::File(file) => pmpi!(MPI_File_call_errhandler(file => Word, class => c_int)),
        };
    }
}

/// The object for which `comm` stands.
pub fn of_comm(comm: Comm) -> Option<Object> {
    let mut objects = lock();
    let mut objects = objects.get_or_insert_default().iter();
    objects.find(|(_, known)| **known == comm).map(|(object, _)| *object)
}
