//! What libraries need that the loader puts between a program and MPI: they find functions in other libraries, and see
//! calls from Fortran, too.

pub mod fortran;
pub mod library;
