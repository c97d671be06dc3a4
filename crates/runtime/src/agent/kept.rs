//! What starts the agent of another machine, and ends what that may leave behind.
//!
//! On the machine of `resurgo run` the dispatcher gets the orphans of an agent that has died. Elsewhere there is nobody: ranks get
//! SIGKILL from the kernel when their agent dies, but not the processes that they have started. So this process is there between the
//! launcher and the agent, and the launcher ends when nothing of the node runs any more.

use std::os::unix::process::ExitStatusExt;

use crate::invited;

/// `resurgo agent kept`: runs an agent that finds its invitation on standard input. Returns its exit status.
pub fn run() -> i32 {
    match invited::run(&mut invited::agent(), None) {
        Ok(status) => status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or_default()),
        Err(error) => {
            eprintln!("resurgo: the agent cannot start: {error}{}", crate::hint(&error));
            1
        }
    }
}
