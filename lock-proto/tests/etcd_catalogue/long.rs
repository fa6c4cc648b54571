//! Queues that are too long to be listed.
// E3, E4

use lock_proto::etcd::{Ahead, Request};

use super::cached_watches::{in_line, release_and_requeue};
use super::*;

/// Long enough for the remaining keys to be listed before the client's turn.
const MANY: usize = 140;
/// More keys than are listed.
const SOME: usize = 16;

/// Returns a client's queue requests after its first `since` requests.
fn queue_requests(w: &World, client: usize, since: usize) -> Vec<Request> {
    let all = w.clients[client].requests.iter().skip(since).map(|(_, request)| request.clone());
    all.filter(|request| matches!(request, Request::Create { .. } | Request::Look { .. })).collect()
}

fn sent(w: &World) -> Vec<usize> {
    w.clients.iter().map(|client| client.requests.len()).collect()
}

/// Each client enters by one request, because its predecessor is the same as before. It lists the
/// remaining keys when its turn is near, and reads a few keys when it has come. Only that list
/// scans the queue, and no other client waits for it.
#[test]
fn hand_over_in_long_queue_reads_few_keys() {
    // E4
    let (mut w, mut line) = in_line(MANY, |config| config);
    for _ in 0..MANY {
        release_and_requeue(&mut w, &mut line);
    }
    let before = sent(&w);
    for _ in 0..MANY {
        release_and_requeue(&mut w, &mut line);
        w.run_for(ms(2));
    }
    let mut lists = 0;
    for (client, since) in before.into_iter().enumerate() {
        let queue_requests = queue_requests(&w, client, since);
        let (mut hand_over, mut enters) = (0, 0);
        for request in &queue_requests {
            match request {
                Request::Look { ahead: None, .. } => lists += 1,
                Request::Look { ahead: Some(Ahead { rest: Some(rest), .. }), .. } if rest.len() <= 4 => hand_over += 1,
                Request::Create { expects: Some(_), long: true, .. } => enters += 1,
                other => panic!("client {client}: {other:?}"),
            }
        }
        assert_eq!((hand_over, enters), (1, 1), "client {client}: {queue_requests:?}");
    }
    // The next few clients may already have listed the queue for their next turn.
    assert!(lists <= MANY + 5, "{lists}");
    w.end();
}

#[test]
fn remaining_keys_are_listed_after_hand_over() {
    // E4
    let (mut w, mut line) = in_line(MANY, |config| config);
    // The last client watches the fifth key before its own, which is deleted five turns earlier.
    while line.len() > 6 {
        let (client, lock) = line.pop_front().unwrap();
        let _ = release_and_wait(&mut w, client, lock);
        let (next, lock) = line[0];
        w.expect(ms(5), "the next one has it", |w| w.is_held(next, lock));
    }
    let (last, _) = line[5];
    let since = w.clients[last].requests.len();
    let (client, lock) = line.pop_front().unwrap();
    w.release(client, lock);
    let (next, lock) = line[0];
    w.expect(ms(5), "the next one has it", |w| w.is_held(next, lock));
    assert_eq!(queue_requests(&w, last, since), []);
    w.run_for(ms(3));
    let queue_requests = queue_requests(&w, last, since);
    assert!(matches!(queue_requests[..], [Request::Look { ahead: None, .. }]), "{queue_requests:?}");
    w.end();
}

#[test]
fn newcomer_to_long_queue_reads_and_watches_predecessor() {
    // E3
    let (mut w, _) = in_line(MANY, |config| config);
    let queue: Vec<_> = w.queue("a").into_iter().map(|kv| kv.key).collect();
    let last = queue_requests(&w, MANY - 1, 0);
    let [Request::Create { expects: None, .. }, Request::Look { ahead: None, .. }] = &last[..] else {
        panic!("{last:?}")
    };
    // The fifth before it as well.
    let mut watched = w.watched(MANY - 1);
    watched.sort();
    let mut expected = vec![queue[MANY - 1].clone(), queue[MANY - 2].clone(), queue[MANY - 6].clone()];
    expected.sort();
    assert_eq!(watched, expected);
    w.end();
}

/// The expected predecessor has left, or another client is between.
#[test]
fn unexpected_predecessor_does_not_break_order() {
    // E3
    for gives_up in [true, false] {
        let (mut w, mut line) = in_line(SOME, |config| config);
        for _ in 0..SOME {
            release_and_requeue(&mut w, &mut line);
        }
        let (client, lock) = line.pop_front().unwrap();
        let (last, waiting) = *line.back().unwrap();
        let _ = release_and_wait(&mut w, client, lock);
        let mut between = None;
        if gives_up {
            w.abandon(last, waiting);
            line.pop_back();
        } else {
            let newcomer = w.add(world::config());
            between = Some((newcomer, w.acquire(newcomer, lock_proto::Acquire::new("a"))));
        }
        w.run_for(ms(10));
        line.extend(between);
        line.push_back((client, w.acquire(client, lock_proto::Acquire::new("a"))));
        w.run_for(ms(10));
        while let Some((client, lock)) = line.pop_front() {
            w.expect(ms(20), "it gets the lock", |w| w.is_held(client, lock));
            let _ = release_and_wait(&mut w, client, lock);
        }
        w.end();
    }
}

/// The predecessors of a waiter leave one by one. The waiter waits for the remaining ones.
#[test]
fn cancelled_predecessors_do_not_cause_grant() {
    // E4
    let (mut w, mut line) = in_line(SOME, |config| config);
    let (last, waiting) = line.pop_back().unwrap();
    let (holder, held) = line.pop_front().unwrap();
    while let Some((client, lock)) = line.pop_back() {
        w.abandon(client, lock);
        w.run_for(ms(5));
        assert!(w.is_held(holder, held) && !w.is_held(last, waiting));
    }
    let known = queue_requests(&w, last, 0).into_iter().rev().find_map(|request| match request {
        Request::Look { ahead, .. } => ahead,
        _ => None,
    });
    assert!(matches!(known, Some(Ahead { rest: Some(_), .. })), "{known:?}");
    let _ = release_and_wait(&mut w, holder, held);
    w.expect(ms(5), "the last one", |w| w.is_held(last, waiting));
    w.end();
}
