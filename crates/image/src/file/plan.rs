//! What the restorer does: system calls in order, each with the result it must have. The program that makes the plan
//! and the restorer, which has no standard library, share this file.
//!
//! A plan is a [`Head`], bytes that steps point to, and its steps. It is mapped at [`PLAN`], and may be written to.

/// Where the restorer lies: odd, so that no program and no kernel puts anything there.
pub const RESTORER: usize = 0x200_0000_0000;
/// The restorer's own memory, the plan and the parked pages lie below this.
pub const RESTORER_END: usize = 0x210_0000_0000;
pub const PLAN: usize = 0x204_0000_0000;
/// Where the kernel's [vvar], [vvar_vclock] and [vdso] wait until their places are free.
pub const PARKED: [usize; 3] = [0x208_0000_0000, 0x208_0100_0000, 0x208_0200_0000];
pub const PARKED_NAMES: [&[u8]; 3] = [b"[vvar]", b"[vvar_vclock]", b"[vdso]"];

/// Any result except an error will do.
pub const ANY: u64 = u64::MAX;
/// Even an error will do.
pub const MAY_FAIL: u64 = u64::MAX - 1;

/// Any result except an error will do; it replaces [`KEPT`] in later steps.
pub const KEEP: u64 = u64::MAX - 2;
/// As an argument: the result of the last [`KEEP`] step.
pub const KEPT: u64 = u64::MAX - 3;

/// Exit code of a process that could not be rebuilt.
pub const EXIT_NOT_RESTORED: i32 = 118;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Head {
    /// How many steps, and how far from [`PLAN`] they begin.
    pub steps: u64,
    pub steps_at: u64,
    /// The socket to the agent.
    pub agent: u64,
    /// Where the process goes on.
    pub entry: u64,
    pub stack: u64,
    /// Address and bytes of the restorer's own memory, and the words in it for the process (`resume.rs`).
    pub arguments: [u64; 3],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Step {
    pub call: u64,
    pub arguments: [u64; 6],
    pub result: u64,
}
