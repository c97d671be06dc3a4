use super::*;

#[test]
fn notes_are_found_again_as_long_as_they_stand() {
    let mut memory = vec![0u64; deeds::BYTES / 8];
    let table = Table(memory.as_mut_ptr().cast());
    let new = Path::here(c"new".as_ptr());
    let (made, removed) = (makes("mkdir", new).deed, removes("rmdir", new).deed);
    let begin = |deed, is_there: bool| with_life(|life| begin(life, table, deed, || is_there)).unwrap();
    let most = deeds::MOST as u64;
    for number in 0..most + 10 {
        let known = begin(made, false);
        assert!(known.outcome.is_none() && known.number == number);
        table.put(number, made, Outcome::Done);
    }
    assert_eq!(begin(removed, true).number, most + 10);
    assert!(!table.has_removed(Path::here(c"old".as_ptr())) && table.has_removed(new));
    // The next life makes as many again, those that are known, and then new ones.
    with_life(|life| life.known = 0);
    for _ in 0..most - 2 {
        let known = begin(made, true);
        assert!(known.outcome == Some(Outcome::Done) && !known.is_anew);
    }
    assert!(begin(removed, false).outcome == Some(Outcome::Begun(true)));
    assert_eq!(begin(made, true).number, most + 11);
    // A life that was killed before it had written its note.
    table.noted().fetch_add(1, Ordering::Relaxed);
    assert!(table.get(most + 12).is_none() && table.get(most + 11).is_some());
    assert_eq!(begin(made, true).number, most + 13);
}

#[test]
fn what_this_life_has_made_anew_is_told_from_what_is_left() {
    let (new, other) = (Path::here(c"new".as_ptr()), Path::here(c"other".as_ptr()));
    let mut memory = vec![0u64; deeds::BYTES / 8];
    let table = Table(memory.as_mut_ptr().cast());
    let (removed, moved) = (removes("unlink", new).deed, renames(new, other).deed);
    for (number, deed) in [removed, moved, removed].into_iter().enumerate() {
        table.put(number as u64, deed, Outcome::Done);
    }
    table.noted().store(3, Ordering::Relaxed);
    let mut life = Life {
        known: 0,
        made: [0; deeds::MOST / 64],
        anew_in: 0,
        anew: [0; deeds::MOST / 64],
        paths: [0; deeds::MOST / 64],
        own: [0; deeds::MOST / 64],
    };
    let again = |life: &mut Life, deed| {
        let known = begin(life, table, deed, || true);
        assert!(known.outcome.is_some());
        (known.number, known.is_anew)
    };
    life.note(table, other, true, 0);
    assert_eq!(again(&mut life, removed), (0, false));
    life.note(table, new, true, 0);
    assert_eq!(again(&mut life, moved), (1, true));
    life.note(table, new, false, 0);
    assert_eq!(again(&mut life, removed), (2, false));
    // A process that has woken up forgets what was so before its image, and nothing since.
    life.anew_in = 7;
    life.note_opened(table, other, 7);
    assert!(life.anew_in == 0 && life.paths == [0; deeds::MOST / 64]);
    life.note_opened(table, other, 0);
    let opened = begin(&mut life, table, removes("unlink", other).deed, || true);
    assert!(opened.outcome.is_none() && opened.is_anew);
}

#[test]
fn what_was_made_again_after_its_removal_is_told_from_what_others_made() {
    let lock = Path::here(c"lock".as_ptr());
    let mut memory = vec![0u64; deeds::BYTES / 8];
    let table = Table(memory.as_mut_ptr().cast());
    let (made, removed) = (makes("open", lock).deed, removes("unlink", lock).deed);
    let note = |number, deed, outcome| {
        table.noted().store(number + 1, Ordering::Relaxed);
        table.put(number, deed, outcome);
    };
    note(0, made, Outcome::Done);
    assert!(table.owns(lock) && !table.owns(Path::here(c"other".as_ptr())));
    note(1, removed, Outcome::Done);
    table.forget(lock);
    assert!(!table.owns(lock));
    note(2, made, Outcome::Failed(EEXIST));
    assert!(!table.owns(lock));
    // Killed before it knew how its call went; and when it knew.
    note(3, made, Outcome::Begun(false));
    assert!(table.owns(lock));
    table.put(3, made, Outcome::Done);
    assert!(table.owns(lock) && matches!(table.get(0), Some((_, Outcome::Gone))));
}

#[test]
fn what_has_been_done_is_told_from_what_has_not() {
    let new = Path::here(c"new".as_ptr());
    let (made, removed) = (makes("mkdir", new).deed, removes("rmdir", new).deed);
    for (deed, outcome, errno, done) in [
        (made, Outcome::Done, EEXIST, true),
        (made, Outcome::Done, ENOENT, false),
        (made, Outcome::Begun(false), EEXIST, true),
        (made, Outcome::Begun(true), EEXIST, false),
        (removed, Outcome::Done, ENOENT, true),
        (removed, Outcome::Done, ENOTEMPTY, true),
        (removed, Outcome::Begun(true), ENOENT, true),
        (removed, Outcome::Begun(false), ENOENT, false),
        (removed, Outcome::Done, libc::EACCES, false),
    ] {
        assert_eq!(has_been_done(deed, outcome, errno, || true), done);
    }
    assert!(!has_been_done(made, Outcome::Done, EEXIST, || false));
    let mut memory = vec![0u64; deeds::BYTES / 8];
    let table = Table(memory.as_mut_ptr().cast());
    for (number, outcome) in [
        (0, Outcome::Begun(true)),
        (5000, Outcome::Done),
        (5001, Outcome::Gone),
        (70_000, Outcome::Failed(EEXIST)),
    ] {
        table.put(number, removed, outcome);
        let (deed, noted) = table.get(number).unwrap();
        assert!(noted == outcome && deed.removes && deed.hash == removed.hash);
    }
}

#[test]
fn what_former_lives_left_is_told_from_what_is_made_anew() {
    let file = std::env::temp_dir().join(format!("deeds-{}", std::process::id()));
    let name = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
    let path = Path::here(name.as_ptr());
    let (mut rested, mut gone_on) = (AtomicU64::new(0), AtomicU64::new(0));
    RESTED.store(&raw mut rested, Ordering::Release);
    GONE_ON.store(&raw mut gone_on, Ordering::Release);
    assert!(!path.is_of_former_life());
    std::fs::write(&file, "former").unwrap();
    assert!(!path.is_of_former_life());
    rested.store(clock(), Ordering::Release);
    assert!(path.is_of_former_life());
    wait_for_clock();
    std::fs::write(&file, "").unwrap();
    assert!(!path.is_of_former_life());
    gone_on.store(1, Ordering::Release);
    assert!(path.is_of_former_life());
    // The same where its notes are lost.
    let mut lost = AtomicU64::new(0);
    NOTES_LOST.store(&raw mut lost, Ordering::Release);
    assert!(!path.is_of_lost_life(false));
    lost.store(clock(), Ordering::Release);
    assert!(path.is_of_lost_life(false));
    assert!(path.is_of_lost_life(true));
    lost.store(rested.load(Ordering::Relaxed), Ordering::Release);
    assert!(path.is_of_lost_life(false) && !path.is_of_lost_life(true));
    // What lost lives have renamed since.
    let (gone, put) = (
        Path::here(c"/nowhere/gone".as_ptr()),
        renames(Path::here(c"/nowhere".as_ptr()), path),
    );
    lost.store(clock(), Ordering::Release);
    assert!(put.is_gone_by_lost_life(false) && !renames(gone, gone).is_gone_by_lost_life(false));
    assert!(removes("unlink", gone).is_gone_by_lost_life(true) && !removes("unlink", gone).is_gone_by_lost_life(false));
    LOST_SINCE.store(clock(), Ordering::Release);
    assert!(!path.is_of_lost_life(false) && !put.is_gone_by_lost_life(false));
    lost.store(0, Ordering::Release);
    assert!(!removes("unlink", gone).is_gone_by_lost_life(true));
    LOST_SINCE.store(0, Ordering::Release);
    NOTES_LOST.store(std::ptr::null_mut(), Ordering::Release);
    RESTED.store(std::ptr::null_mut(), Ordering::Release);
    GONE_ON.store(std::ptr::null_mut(), Ordering::Release);
    std::fs::remove_file(&file).unwrap();
}

/// Files may have later times than the coarse clock.
fn clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap().as_nanos() as u64
}
