//! The parent of another machine's agent, which ends the processes that the agent may leave behind.
//!
//! On the machine of `resurgo run` the dispatcher inherits a dead agent's orphans. Elsewhere no process does. The
//! kernel kills ranks when their agent dies, but not the processes that they have started. So this process stands
//! between the launcher and the agent, and ends when no process of the node runs any more.

use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt;

use resurgo_wire::control::{Invitation, Told};

use crate::invited;

/// `resurgo agent kept [NODE]`: runs an agent that reads its invitation from standard input. Returns its exit status.
/// With the number of its node, says on standard output that nothing of it runs any more.
pub fn run(node: Option<u32>) -> i32 {
    let code = match invited::run(&mut invited::agent(), None::<&Invitation>) {
        Ok(status) => status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or_default()),
        Err(error) => {
            let _ = writeln!(
                io::stderr(),
                "resurgo: the agent cannot start: {error}{}",
                crate::hint(&error)
            );
            1
        }
    };
    if let Some(line) = node.and_then(|node| Told::Ended { node }.line().ok()) {
        // The helper may have gone.
        let _ = io::stdout().write_all(&line).and_then(|()| io::stdout().flush());
    }
    code
}
