//! What starts the agent of another machine, and ends what that may leave behind.
//!
//! On the machine of `resurgo run` the dispatcher gets the orphans of an agent that has died. Elsewhere there is nobody: ranks get
//! SIGKILL from the kernel when their agent dies, but not the processes that they have started. So this process is there between the
//! launcher and the agent, and the launcher ends when nothing of the node runs any more.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use nix::sys::prctl;
use resurgo_wire::control::{AGENT, INVITED};

use super::PATIENCE;
use crate::{children, passed_on};

/// `resurgo agent kept`: runs an agent that finds its invitation on standard input. Returns its exit status.
pub fn run() -> i32 {
    let agent = prctl::set_child_subreaper(true)
        .map_err(std::io::Error::from)
        .and_then(|()| {
            Command::new("/proc/self/exe")
                .arg0("resurgo")
                .args([AGENT, INVITED])
                .spawn()
        });
    let ended = agent.and_then(|mut agent| passed_on::wait(&mut agent));
    children::kill_all(PATIENCE);
    match ended {
        Ok(status) => status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or_default()),
        Err(error) => {
            eprintln!("resurgo: the agent cannot start: {error}{}", crate::hint(&error));
            1
        }
    }
}
