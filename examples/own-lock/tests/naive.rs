use lock_sim::Rule;
use lock_sim::own::find;
use own_lock::naive::Naive;

#[test]
fn scenario_finds_the_bug() {
    let found = find(&Naive, "redis-pauses", 0..100, Rule::MutualExclusion).expect("a bug");
    println!("{found}");
    std::fs::write("naive.html", found.picture()).expect("a picture");
    assert!(found.plan.len() <= 6);
}
