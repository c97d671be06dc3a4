//! Ranks that leave a node one after the other.

use super::*;

/// Two ranks of node 1, which is to be left, and one of node 0, where messages are in channel memories.
fn moving() -> Coordinator {
    let mut job = launched(with_partners(Protocol::ChannelMemory, 3), &[0, 1, 2], 3, &[0, 1, 1]);
    assert_eq!(after(&mut job, Fact::Leave { node: 1 }), [], "it waits for images");
    job
}

#[test]
fn ranks_that_recover_alone_move_one_after_the_other() {
    let mut job = moving();
    for (rank, place, is_last) in [(1, (2, None), false), (2, (0, Some(2)), true)] {
        image(&mut job, rank, 1);
        let has = after(&mut job, stored(rank, 1, Place::Node(2)));
        let (number, life) = (1, 1);
        assert_eq!(has, [Command::EndCopy { rank, number }, Command::Kill { rank, life }]);
        let begun = after(&mut job, ended(rank, 1));
        assert_eq!((begins(&begun), on(&begun)), (vec![(rank, From::File(1))], vec![place]));
        let started = after(&mut job, Fact::Started { rank, life: 2 });
        assert_eq!(started.contains(&Command::Left { node: 1 }), is_last, "{started:?}");
    }
    image(&mut job, 0, 1);
    assert_eq!(after(&mut job, stored(0, 1, Place::Node(2))), [], "rank 0 stays");
}

#[test]
fn a_rank_that_ends_before_it_moves_need_not() {
    let mut job = moving();
    for rank in [1, 2] {
        image(&mut job, rank, 1);
        let life = 1;
        let orderly = true;
        let finished = after(&mut job, Fact::Ended { rank, life, orderly });
        assert_eq!(finished.contains(&Command::Left { node: 1 }), rank == 2, "{finished:?}");
    }
}

#[test]
fn a_rank_that_dies_before_its_image_is_elsewhere_moves_with_its_next_life() {
    let mut job = moving();
    image(&mut job, 1, 1);
    after(&mut job, ended(1, 1));
    let again = after(&mut job, Fact::Restart { rank: 1 });
    assert_eq!(
        (begins(&again), on(&again)),
        (vec![(1, From::Copy(1))], vec![(1, None)])
    );
    after(&mut job, Fact::Started { rank: 1, life: 2 });
    let has = after(&mut job, stored(1, 1, Place::Node(2)));
    assert!(has.contains(&Command::Kill { rank: 1, life: 2 }), "{has:?}");
    after(&mut job, Fact::Down { node: 1 });
    let moved = after(&mut job, Fact::Restart { rank: 1 });
    assert_eq!(on(&moved), [(2, None)], "its node may be lost meanwhile");
    assert_eq!(after(&mut job, ended(1, 2)), []);
}

#[test]
fn ranks_without_another_node_for_their_images_stay() {
    let mut job = moving();
    [0, 2]
        .into_iter()
        .for_each(|node| drop(after(&mut job, Fact::Down { node })));
    let told = image(&mut job, 1, 1);
    assert!(matches!(told.last(), Some(Command::Stays { node: 1, .. })), "{told:?}");
}

#[test]
fn a_rank_whose_image_comes_elsewhere_while_it_begins_again_moves_when_it_has_begun() {
    let mut job = moving();
    image(&mut job, 1, 1);
    after(&mut job, ended(1, 1));
    after(&mut job, Fact::Restart { rank: 1 });
    assert_eq!(after(&mut job, stored(1, 1, Place::Node(2))), []);
    let started = after(&mut job, Fact::Started { rank: 1, life: 2 });
    assert!(started.contains(&Command::Kill { rank: 1, life: 2 }), "{started:?}");
    let moved = after(&mut job, ended(1, 2));
    assert_eq!(
        (begins(&moved), on(&moved)),
        (vec![(1, From::File(1))], vec![(2, None)])
    );
}
