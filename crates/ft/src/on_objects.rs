//! Calls on windows and files, from the one that makes it to the one that ends it.

use std::ffi::c_int;

use crate::errors::{raise, raise_by, returns_errors, told};
use crate::layer::{self, About};
use crate::making::{make_quietly, making};
use crate::mpi::{COMM_NULL, Comm, ERR_OTHER, ERRORS_RETURN, Group, Request, SUCCESS, pmpi};
use crate::objects::Object;
use crate::provider::{self, From};

/// Functions with the same arguments stand together.
macro_rules! each {
    ($call:ident; $([$($name:ident)+] $arguments:tt;)*) => {$($($call! { $name $arguments })+)*};
}
pub(crate) use each;

/// MPI's errors go to nobody while `call` runs: some are made up.
fn quietly(object: Object, call: impl FnOnce() -> c_int) -> (c_int, c_int) {
    let mut handler = 0;
    object.get_handler(&mut handler);
    object.set_handler(ERRORS_RETURN);
    (call(), handler)
}

fn restore(object: Object, mut handler: c_int) {
    object.set_handler(handler);
    pmpi!(MPI_Errhandler_free(&mut handler => *mut c_int));
}

/// A call on an object that may need its other members.
pub fn on(object: Object, call: impl FnOnce() -> c_int) -> c_int {
    let Some(comm) = object.comm() else { return call() };
    if let Some(class) = layer::trouble(comm) {
        return raise(comm, class);
    }
    let (code, handler) = quietly(object, || making(&object.place(comm), call));
    restore(object, handler);
    match layer::trouble(comm) {
        Some(class) => raise(comm, class),
        None if code != SUCCESS => raise(comm, code),
        None => code,
    }
}

/// A call that waits for nobody.
pub fn alone(object: Object, call: impl FnOnce() -> c_int) -> c_int {
    match object.trouble() {
        Some((comm, class)) => raise(comm, class),
        None => call(),
    }
}

/// A call that begins something that needs others.
///
/// # Safety
/// `request` is the program's place for it.
pub unsafe fn begins(object: Object, request: *mut Request, call: impl FnOnce() -> c_int) -> c_int {
    let code = alone(object, call);
    if let (SUCCESS, Some(comm)) = (code, object.comm()) {
        // SAFETY: MPI has written it.
        layer::track(unsafe { *request }, About::Object { comm });
    }
    code
}

/// A communicator that stands for an object of `comm`, or the class of the error.
fn stand_in(comm: Comm) -> Result<Comm, c_int> {
    let mut group: Group = 0;
    pmpi!(MPI_Comm_group(comm => Comm, &mut group => *mut Group));
    let new = make_quietly(
        comm,
        &From::Parent(layer::context(comm)),
        |comm, new| pmpi!(MPI_Comm_create(comm => Comm, group => Group, new => *mut Comm)),
    );
    pmpi!(MPI_Group_free(&mut group => *mut Group));
    new.inspect(|new| returns_errors(*new))
}

/// A call that makes an object of `comm`. `object` is what it has made; `drop` forgets that.
/// `handles`: the handler of this one is called where there is none; otherwise that of `comm`.
pub fn make(
    comm: Comm,
    handles: Option<Object>,
    from: impl FnOnce(Option<u32>) -> From,
    call: impl FnOnce(Comm) -> c_int,
    object: impl Fn() -> Object,
    drop: impl FnOnce(),
) -> c_int {
    if !provider::is_there() || comm == COMM_NULL {
        return call(comm);
    }
    let new = match stand_in(comm) {
        Ok(new) => new,
        Err(class) => return raise_by(handles, comm, class),
    };
    let call = || making(&from(layer::context(new)), || call(new));
    let (code, handler) = match handles {
        None => (call(), None),
        Some(handles) => {
            let (code, handler) = quietly(handles, call);
            (code, Some((handles, handler)))
        }
    };
    let class = layer::trouble(new);
    let is_made = class.is_none() && code == SUCCESS;
    if let Some((handles, handler)) = handler {
        if is_made {
            object().set_handler(handler);
        }
        restore(handles, handler);
    }
    if is_made {
        object().note(new);
        return code;
    }
    if class.is_some() {
        // What there is stays with MPI: others may not have it.
        drop();
    }
    raise_by(handles, comm, class.unwrap_or(code))
}

/// A call that ends an object; `drop` forgets it.
pub fn end(object: Object, call: impl FnOnce() -> c_int, drop: impl FnOnce()) -> c_int {
    let Some(mut comm) = object.comm() else { return call() };
    if layer::trouble(comm).is_none() {
        let (code, handler) = quietly(object, || making(&object.place(comm), call));
        if code == SUCCESS {
            let class = layer::trouble(comm).map_or(code, |class| told(comm, class));
            object.forget();
            if layer::forget(comm) {
                pmpi!(MPI_Comm_free(&mut comm => *mut Comm));
            }
            return class;
        }
        restore(object, handler);
        if layer::trouble(comm).is_none() {
            return raise(comm, code);
        }
    }
    // It stays with MPI: others may still send to it.
    let class = raise(comm, layer::trouble(comm).unwrap_or(ERR_OTHER));
    object.forget();
    layer::forget(comm);
    drop();
    class
}
