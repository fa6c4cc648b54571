//! Endpoints by priority and weight, and those that the cluster reports.
// N22

use alloc::collections::BTreeMap;

use super::*;
use crate::etcd::message::{ClusterHeader, Member, MemberListResponse};
use crate::tls::Tls;
use crate::url::Target;

const EVERY: Duration = Duration::from_secs(300);

fn endpoint(host: &str, priority: u16, weight: u16) -> Endpoint {
    Endpoint::srv(priority, weight, 2379, host).unwrap()
}

fn with(endpoints: Vec<Endpoint>) -> ChannelConfig {
    ChannelConfig { endpoints, ..config(0) }
}

/// Lists voters and learners by their URLs.
fn list(cluster_id: u64, voters: &[&str], learners: &[&str]) -> Result<RpcReply, Status> {
    let all = voters.iter().map(|url| (url, false)).chain(learners.iter().map(|url| (url, true)));
    let members = all.map(|(url, is_learner)| Member { client_urls: vec![(*url).into()], is_learner }).collect();
    let header = Some(ClusterHeader { cluster_id });
    Ok(RpcReply::MemberList(MemberListResponse { header, members }))
}

fn requested_list(rig: &mut ChannelRig) -> RpcId {
    match rig.channel.poll_output() {
        Some(ChannelOutput::Do(Output::Call { rpc, request: Rpc::MemberList(_), .. })) => rpc,
        other => panic!("no request for the list: {other:?}"),
    }
}

fn connecting(rig: &mut ChannelRig) -> (ConnId, String) {
    match rig.channel.poll_output() {
        Some(ChannelOutput::Do(Output::Connect { conn, endpoint, .. })) => (conn, endpoint.to_string()),
        other => panic!("no connect: {other:?}"),
    }
}

/// Fails each connection until the endpoint is tried.
fn fail_until(rig: &mut ChannelRig, wanted: &str) -> ConnId {
    for _ in 0..9 {
        if rig.channel.current().is_none() {
            rig.until_due();
        }
        let (conn, to) = connecting(rig);
        if to == wanted {
            return conn;
        }
        rig.channel.handle_disconnected(rig.now, conn, Fault::Refused);
    }
    panic!("never tried: {wanted}");
}

/// The endpoints that one round of failures tries.
fn tried(rig: &mut ChannelRig) -> Vec<String> {
    let mut tried = Vec::new();
    loop {
        if rig.channel.current().is_none() {
            rig.until_due();
        }
        let (conn, to) = connecting(rig);
        rig.channel.handle_disconnected(rig.now, conn, Fault::Refused);
        if tried.contains(&to) {
            return tried;
        }
        tried.push(to);
    }
}

/// Synchronised with this list, over a connection that has ended.
fn synced(config: ChannelConfig, reply: Result<RpcReply, Status>) -> ChannelRig {
    let mut rig = ChannelRig::with(ChannelConfig { sync_members: Some(EVERY), ..config });
    rig.send_for(grant(1), 3600 * SECOND);
    let conn = rig.connected();
    if rig.channel.state.config.logs_in() {
        let rpc = rig.call();
        rig.answer(rpc, Ok(RpcReply::Authenticate(AuthenticateResponse { header: None, token: "t".into() })));
    }
    let rpc = rig.call();
    let list = requested_list(&mut rig);
    rig.answer(list, reply);
    rig.answer(rpc, granted(1));
    rig.all();
    rig.channel.handle_disconnected(rig.now, conn, Fault::Reset);
    rig.send_for(grant(1), 3600 * SECOND);
    rig
}

#[test]
fn lower_priority_numbers_are_tried_first() {
    let mut rig = ChannelRig::with(with(vec![endpoint("far", 7, 0), endpoint("a", 1, 0), endpoint("b", 1, 0)]));
    rig.send_for(grant(1), 3600 * SECOND);
    let mut first = tried(&mut rig);
    assert_eq!(first.pop().unwrap(), "far:2379");
    first.sort();
    assert_eq!(first, ["a:2379", "b:2379"]);
}

/// They accept connections, but answer no call or no login. Only the two were tried, for ever.
#[test]
fn hung_members_do_not_hide_those_of_higher_priority_number() {
    // N22, E13
    for login in [Login::default(), Login::new("app", "pw")] {
        let endpoints = vec![endpoint("far", 7, 0), endpoint("a", 1, 0), endpoint("b", 1, 0)];
        let mut rig = ChannelRig::with(ChannelConfig { login, ..with(endpoints) });
        let mut tried = Vec::new();
        for _ in 0..3 {
            rig.send_for(grant(1), 3600 * SECOND);
            let Some(ChannelOutput::Do(Output::Connect { conn, endpoint, .. })) = rig.all().pop() else { panic!() };
            tried.push(endpoint.to_string());
            rig.channel.handle_connected(rig.now, conn);
            rig.call();
            rig.until_due();
        }
        assert_eq!(tried[2], "far:2379", "{tried:?}");
    }
}

/// Only [`Config`](crate::etcd::Config) limits their number.
#[test]
fn many_endpoints_are_all_tried() {
    let mut rig = ChannelRig::with(with((0..70).map(|n| endpoint(&format!("h{n}"), n % 3, 0)).collect()));
    rig.send_for(grant(1), 3600 * SECOND);
    assert_eq!(tried(&mut rig).len(), 70);
}

#[test]
fn client_goes_back_to_lower_priority_number() {
    let endpoints = || with(vec![endpoint("far", 7, 0), endpoint("near", 1, 0)]);
    let connect_far = |rig: &mut ChannelRig| {
        rig.send_for(grant(1), 3600 * SECOND);
        let conn = fail_until(rig, "far:2379");
        rig.channel.handle_connected(rig.now, conn);
        let rpc = rig.call();
        rig.answer(rpc, granted(1));
        rig.all();
        conn
    };
    // When the connection ends after it lasted.
    let mut rig = ChannelRig::with(endpoints());
    let conn = connect_far(&mut rig);
    rig.pass(SECOND);
    rig.channel.handle_disconnected(rig.now, conn, Fault::Closed);
    rig.send(grant(1));
    assert_eq!(connecting(&mut rig).1, "near:2379");
    // When nothing needs it.
    let mut rig = ChannelRig::with(ChannelConfig { idle_timeout: Some(60 * SECOND), ..endpoints() });
    let conn = connect_far(&mut rig);
    rig.until_due();
    assert_eq!(rig.all(), [disconnect(conn)]);
    rig.send(grant(1));
    assert_eq!(connecting(&mut rig).1, "near:2379");
}

#[test]
fn first_endpoint_is_chosen_by_weight() {
    let mut chosen = BTreeMap::<String, u32>::new();
    for seed in 0..1000 {
        let endpoints = vec![endpoint("a", 1, 3), endpoint("no", 2, 99), endpoint("never", 1, 0), endpoint("b", 1, 1)];
        let mut channel = Channel::new(with(endpoints), seed);
        channel.send(Instant::from_millis(1), CallId::new(NodeId::new(0), 1), grant(1), SECOND);
        let Some(ChannelOutput::Do(Output::Connect { endpoint, .. })) = channel.poll_output() else { panic!() };
        *chosen.entry(endpoint.to_string()).or_default() += 1;
    }
    assert_eq!(chosen.values().sum::<u32>(), 1000);
    assert_eq!(chosen.len(), 2, "{chosen:?}");
    assert!((700..800).contains(&chosen["a:2379"]), "{chosen:?}");
}

#[test]
fn reported_members_are_added_after_configured_ones_without_learners() {
    // N22
    let reply = list(
        7,
        &["http://h1:2379", "http://h3:2379/", "http://h2:1", "https://tls:2379", "x", "http://"],
        &["http://learner:2379"],
    );
    let mut rig = synced(config(2), reply);
    let mut all = tried(&mut rig);
    all[1..].sort();
    // The connection to the other one has just ended.
    assert_eq!(all, ["h1:2379", "h2:1", "h3:2379"]);
}

#[test]
fn reported_member_must_belong_to_same_cluster() {
    // N22
    let restarting = Err(status(Code::Unavailable, "transport is closing"));
    let refused = Err(status(Code::PermissionDenied, "no"));
    for (answer, left) in [
        (list(8, &[], &[]), &["h1:2379"][..]),
        (refused, &["h1:2379"]),
        (granted(1), &["h1:2379"]),
        (restarting, &["h1:2379", "localhost:2379"]),
    ] {
        let login = Login::new("app", "pw");
        let mut rig = synced(ChannelConfig { login, ..config(1) }, list(7, &["http://localhost:2379"], &[]));
        let conn = fail_until(&mut rig, "localhost:2379");
        rig.channel.handle_connected(rig.now, conn);
        let rpc = requested_list(&mut rig);
        assert_eq!(rig.all(), [], "no login, no request");
        rig.answer(rpc, answer);
        assert!(is_failure(&rig.channel.poll_output().unwrap(), conn));
        assert_eq!(tried(&mut rig), left, "forgotten, unless it has shown nothing");
    }
    // The same cluster.
    let mut rig = synced(config(1), list(7, &["http://h2:2379"], &[]));
    let conn = fail_until(&mut rig, "h2:2379");
    rig.channel.handle_connected(rig.now, conn);
    let rpc = requested_list(&mut rig);
    rig.answer(rpc, list(7, &[], &[]));
    let rpc = rig.call();
    rig.answer(rpc, granted(1));
    assert!(matches!(rig.all()[..], [ChannelOutput::Reply { .. }]));
    assert_eq!(rig.channel.endpoint(conn.node()).unwrap().to_string(), "h2:2379");
}

/// It was the first of the settings, whatever its priority.
#[test]
fn member_that_is_gone_is_followed_by_lowest_priority_number() {
    // N22
    let config = with(vec![endpoint("far", 7, 0), endpoint("near", 1, 0)]);
    let mut rig = synced(config, list(7, &["http://h3:2379"], &[]));
    let (conn, to) = connecting(&mut rig);
    assert_eq!(to, "far:2379", "the connection to the other one has just ended");
    rig.now = rig.now + EVERY;
    rig.channel.handle_connected(rig.now, conn);
    rig.call();
    let rpc = requested_list(&mut rig);
    rig.answer(rpc, list(7, &["http://h4:2379"], &[]));
    // Now it would be the turn of h3.
    rig.channel.handle_disconnected(rig.now, conn, Fault::Reset);
    rig.all();
    rig.send_for(grant(1), 3600 * SECOND);
    assert_eq!(connecting(&mut rig).1, "near:2379");
}

#[test]
fn reported_members_need_tls_like_configured_ones() {
    // N4, N22
    let config = with(vec![endpoint("h1", 0, 0).with_tls(Tls::default())]);
    let mut rig = synced(config, list(7, &["http://plain:2379", "https://h2:2379"], &[]));
    let mut targets = Vec::new();
    while targets.len() < 3 {
        if rig.channel.current().is_none() {
            rig.until_due();
        }
        let Some(ChannelOutput::Do(Output::Connect { conn, endpoint, .. })) = rig.channel.poll_output() else {
            panic!()
        };
        assert!(matches!(endpoint.target, Target::Tls { .. }), "{endpoint}");
        targets.push(endpoint.to_string());
        rig.channel.handle_disconnected(rig.now, conn, Fault::Refused);
    }
    assert_eq!(targets, ["h1:2379", "h2:2379", "h1:2379"]);
}

/// A list changes nothing while a connection is open, since numbers identify its endpoint.
#[test]
fn later_list_replaces_earlier_one_between_connections() {
    // N8, N22
    let mut rig = synced(config(1), list(7, &["http://h2:2379", "http://h3:2379"], &[]));
    let conn = fail_until(&mut rig, "h3:2379");
    rig.channel.handle_connected(rig.now, conn);
    let rpc = requested_list(&mut rig);
    rig.answer(rpc, list(7, &[], &[]));
    let rpc = rig.call();
    rig.answer(rpc, granted(1));
    rig.all();
    rig.pass(EVERY);
    rig.send(grant(1));
    rig.call();
    let rpc = requested_list(&mut rig);
    rig.answer(rpc, list(7, &["http://h4:2379"], &[]));
    assert_eq!(rig.channel.endpoint(conn.node()).unwrap().to_string(), "h3:2379");
    assert_eq!(rig.channel.current(), Some(conn));
    rig.all();
    rig.channel.handle_disconnected(rig.now, conn, Fault::Closed);
    rig.all();
    rig.pass(SECOND);
    rig.all();
    rig.send_for(grant(1), 3600 * SECOND);
    let mut all = tried(&mut rig);
    all.sort();
    assert_eq!(all, ["h1:2379", "h4:2379"]);
}

#[test]
fn refused_or_hostile_list_changes_nothing() {
    // N22
    let many: Vec<String> = (0..200).map(|n| format!("http://x{n}:2379")).collect();
    let many: Vec<&str> = many.iter().map(|url| &**url).collect();
    for (reply, expected) in [
        (Err(status(Code::PermissionDenied, "etcdserver: permission denied")), 1),
        (Err(status(Code::Unimplemented, "unknown method")), 1),
        (granted(1), 1),
        (Ok(RpcReply::MemberList(MemberListResponse::default())), 1),
        (list(7, &many, &[]), 16),
    ] {
        let mut rig = synced(config(1), reply);
        assert_eq!(tried(&mut rig).len(), expected);
    }
}

/// The list is requested again only together with other work.
#[test]
fn idle_connection_requests_no_list() {
    // P7, N22
    let sync_members = Some(EVERY);
    let mut rig = ChannelRig::with(ChannelConfig { sync_members, idle_timeout: Some(2 * EVERY), ..config(1) });
    rig.send(grant(1));
    let conn = rig.connected();
    let rpc = rig.call();
    let members = requested_list(&mut rig);
    rig.answer(members, list(7, &[], &[]));
    rig.answer(rpc, granted(1));
    rig.all();
    rig.until_due();
    assert_eq!(rig.all(), [disconnect(conn)]);
    // While a watch is open, it is.
    let mut rig = ChannelRig::with(ChannelConfig { sync_members, watch_quiet: 10 * EVERY, ..config(1) });
    rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
    rig.connected();
    rig.stream(StreamKind::Watch);
    let requests = rig.requests();
    assert!(requests.iter().any(|request| matches!(request, Output::Call { request: Rpc::MemberList(_), .. })));
}
