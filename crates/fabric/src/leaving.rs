//! The end of a process whose MPI_Finalize has failed.
//!
//! MPI reports messages that nobody has received as an error of MPI_Finalize, and then leaves its endpoint open. Many
//! programs ignore the error and exit. For MPI they have finalised, so the endpoint closes with the process.

use crate::{claim, engine, imports};

/// The loader calls it when the process exits, behind the exit handlers of the program.
#[used]
#[unsafe(link_section = ".fini_array")]
static LEAVE: extern "C" fn() = leave;

extern "C" fn leave() {
    // SAFETY: it lives as long as the process; behind MPI_Finalize no other thread is in it.
    let Some(engine) = (unsafe { engine::images::known().as_mut() }) else {
        return;
    };
    if engine.is_open_since_the_beginning() && claim::is_this_process() && imports::mpi_is_finalised() {
        engine.close_unfinalised();
    }
}
