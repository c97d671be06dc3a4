//! Nodes that are lost while all ranks return.

use super::*;

#[test]
fn all_begin_once_when_the_node_on_which_they_begin_is_lost() {
    let mut job = launched(with_partners(Protocol::Blocking, 2), &[0, 1], 2, &[0, 0]);
    wave_with_partners(&mut job, 1, [1, 1]);
    after(&mut job, ended(0, 1));
    after(&mut job, Fact::Return { rank: 0 });
    let all = after(&mut job, ended(1, 1));
    assert_eq!(on(&all), [(0, None); 2]);

    let again = after(&mut job, Fact::Down { node: 0 });
    assert_eq!(begins(&again), [0, 1].map(|rank| (rank, From::File(1))));
    assert_eq!(on(&again), [(1, None); 2]);
    // Nobody ends these lives.
    let is_new = |command: &&Command| matches!(command, Command::Kill { life: 3, .. });
    assert_eq!(again.iter().filter(is_new).count(), 0, "{again:?}");

    // Whoever is lost now is waited for, and so is the other one.
    let not_begun = Fact::NotBegun { rank: 0, life: 3 };
    assert_eq!(on(&after(&mut job, not_begun)), []);
    assert_eq!(on(&after(&mut job, ended(1, 3))), [(1, None); 2]);
}
