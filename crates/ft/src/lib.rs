//! `libresurgo-ft.so`: for programs that deal with failures themselves, between the program and an unmodified MPICH.
//!
//! It stands in for MPI's functions and calls MPI under its other names (PMPI). The provider below MPI brings blocked
//! calls back ([`provider`]); this library knows what they were about, and returns ULFM's errors instead of what they
//! got. Without `resurgo run --ft` it does nothing but pass calls on.

mod agreements;
mod attributes;
mod checkpoints;
mod collectives;
mod communicators;
mod errors;
mod exchanges;
mod files;
mod finalize;
mod ftmpi;
mod gapped;
mod gaps;
mod layer;
mod making;
mod messages;
mod mpi;
mod objects;
mod on_objects;
mod passed;
mod probes;
mod provider;
mod rebuilding;
mod requests;
mod rules;
mod strangers;
mod ulfm;
mod windows;

/// Runs when the process has loaded its libraries, before any function of MPI.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = resurgo_preload::fortran::redirect;
