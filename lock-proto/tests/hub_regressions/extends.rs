//! Extends and their replies.

use super::*;

#[test]
fn extend_is_not_answered_by_renewal_in_flight() {
    // H3
    for (ends, later) in [(Reply::Extended, true), (not_sent(), false)] {
        let mut hub = Hub::new(1, |c| c);
        let id = hub.held(0, &want());
        hub.at(3_000);
        let (renewal, _) = hub.one();
        hub.locks.extend(ms(3_001), id).unwrap();
        hub.drain();
        assert_eq!(hub.requests(), [], "one request at a time");
        hub.reply(3_002, renewal, &Reply::Extended);
        assert!(matches!(hub.take_events()[..], [Event::Renewed { .. }]));
        let (call, request) = hub.one();
        assert!(matches!(request, Request::Extend { .. }), "{request:?}");
        hub.reply(3_003, call, &ends);
        let events = hub.take_events();
        match &events[..] {
            [Event::Renewed { .. }, Event::Extended] if later => {}
            [Event::ExtendFailed(report)] if !later => assert_eq!(report.waited, for_ms(2)),
            _ => panic!("{events:?}"),
        }
    }
}

/// Each extend gets a separate reply. One requested while another is in flight waits.
#[test]
fn concurrent_extends_get_separate_outcomes() {
    // H3
    for nodes in [1, 3] {
        let mut hub = Hub::new(nodes, |c| c);
        let id = hub.held(0, &want().renew(Renew::Manual));
        let extend = |hub: &mut Hub, at: u64| {
            hub.locks.extend(ms(at), id).unwrap();
            hub.drain();
        };
        extend(&mut hub, 10);
        let first = hub.requests();
        assert_eq!(first.len(), usize::from(nodes));
        extend(&mut hub, 20);
        extend(&mut hub, 30);
        assert_eq!(hub.requests(), []);
        for (call, _) in first {
            hub.reply(40, call, &Reply::Extended);
        }
        assert!(matches!(hub.take_events()[..], [Event::Renewed { .. }, Event::Extended]), "{nodes} nodes");
        let second = hub.requests();
        assert_eq!(second.len(), usize::from(nodes));
        for (call, _) in second {
            hub.reply(50, call, &not_sent());
        }
        let events = hub.take_events();
        let [Event::ExtendFailed(second), Event::ExtendFailed(third)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((second.waited, third.waited), (for_ms(30), for_ms(20)));
        assert_eq!(hub.requests(), []);
    }
}
