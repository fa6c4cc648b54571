//! Defects of versions of etcd, and its gRPC proxy.

use super::*;

/// The creation revision of a key, and the revision of the reply, by a read and a transaction.
fn read(b: &mut Bench, conn: u64) -> Vec<(Option<i64>, i64)> {
    let Rpc::Range(one) = range("k") else { unreachable!() };
    let in_txn = RequestOp { request: Some(Op::Range(one)) };
    b.call(conn, &range("k"));
    b.call(conn, &Rpc::Txn(TxnRequest { success: vec![in_txn], ..TxnRequest::default() }));
    let seen = |output: ClusterOutput| {
        let ClusterOutput::Reply { reply: Ok(reply), .. } = output else { return None };
        let (header, kvs) = if let RpcReply::Range(found) = reply {
            (found.header, found.kvs)
        } else if let RpcReply::Txn(txn) = reply {
            let Some(OpResponse::Range(found)) = txn.responses[0].response.clone() else { return None };
            (txn.header, found.kvs)
        } else {
            return None;
        };
        Some((kvs.first().map(|kv| kv.create_revision), header.unwrap().revision))
    };
    b.outputs().into_iter().filter_map(seen).collect()
}

fn ttls(outputs: &[ClusterOutput]) -> Vec<(i64, i64)> {
    let answer = |output: &ClusterOutput| {
        let ClusterOutput::Message { message: StreamReceived::KeepAlive(answer), .. } = output else { return None };
        Some((answer.id, answer.ttl))
    };
    outputs.iter().filter_map(answer).collect()
}

#[test]
fn replaced_leader_reads_its_old_state_until_it_learns_of_new_one() {
    // S1
    for (stale, seed) in (0..20).flat_map(|seed| [(false, seed), (true, seed)]) {
        let mut b = Bench::new(ClusterConfig::new(3, seed));
        b.cluster.set(b.now, Condition::StaleReads, stale);
        b.put(0, "k", 0);
        b.cluster.isolate(b.now, 0);
        b.pass(SECOND * 2);
        assert!(b.cluster.delete(b.now, "k"));
        b.put(1, "k", 0);
        b.outputs();
        b.cluster.heal(b.now, 0);
        let (old, new) = (vec![(Some(2), 2); 2], vec![(Some(4), 4); 2]);
        assert_eq!(read(&mut b, 0), if stale { old } else { new.clone() });
        assert_eq!(read(&mut b, 1), new);
        // What goes through the log waits, and is executed on the new state.
        b.put(0, "k", 0);
        assert_eq!(b.outputs().len(), usize::from(!stale));
        assert_eq!(replies(&b.pass(MS * 100)).len(), usize::from(stale));
        assert_eq!(read(&mut b, 0), vec![(Some(4), 5); 2]);
    }
}

#[test]
fn member_that_did_not_lead_reads_new_state() {
    // S1
    let mut b = Bench::three();
    b.cluster.set(b.now, Condition::StaleReads, true);
    b.cluster.isolate(b.now, 2);
    b.put(0, "k", 0);
    b.outputs();
    b.cluster.heal(b.now, 2);
    assert_eq!(read(&mut b, 2), vec![(Some(2), 2); 2]);
}

#[test]
fn keep_alive_that_arrives_before_expiry_is_confirmed_after_revocation() {
    // S1
    for defect in [false, true] {
        let mut b = Bench::three();
        b.cluster.set(b.now, Condition::RevokedKeepAlives, defect);
        b.call(0, &Rpc::Grant(LeaseGrantRequest { ttl: 5, id: 5 }));
        b.open(0, KEEP, StreamKind::KeepAlive);
        b.pass(MS * 4_900);
        b.keep_alive(0, 5);
        assert_eq!(ttls(&b.outputs()), if defect { vec![] } else { vec![(5, 5)] });
        let outputs = b.pass(SECOND);
        assert_eq!((ttls(&outputs), b.cluster.leases().is_empty()), (vec![(5, 5); usize::from(defect)], defect));
    }
}

#[test]
fn proxy_answers_keep_alives_of_each_lease_in_order() {
    // S1
    let mut overtaken = 0;
    for seed in 0..20 {
        let mut b = Bench::new(ClusterConfig::new(3, seed).keep_alives_per_lease(true));
        for id in [5, 6] {
            b.call(0, &Rpc::Grant(LeaseGrantRequest { ttl: 8, id }));
        }
        b.outputs();
        b.open(0, KEEP, StreamKind::KeepAlive);
        [5, 6].into_iter().for_each(|id| b.keep_alive(0, id));
        assert_eq!(ttls(&b.outputs()), [(5, 8), (6, 8)]);
        [5, 6, 5, 6].into_iter().for_each(|id| b.keep_alive(0, id));
        let answers = ttls(&b.pass(SECOND * 2));
        assert_eq!(answers.len(), 4);
        overtaken += u32::from(answers != [(5, 8), (6, 8), (5, 8), (6, 8)]);
    }
    assert!(overtaken > 5, "{overtaken}");
}
