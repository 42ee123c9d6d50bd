// Package plantest supports tests of the planner and of the packages that use its plans.
//
//   - config.go: small configurations, observed states and copies. A test begins with
//     [TwoNodes] or [NewConfig], observes [EmptyDisks], adds copies and failures, and
//     plans for one of the nodes ([AsNode]).
//   - random.go: random situations, realistic or not ([Situation]). The flag -seeds sets
//     their number ([Seeds]).
//   - invariants.go: [CheckPlan] fails a test if a plan violates a rule. It states the rules
//     a second time, without any code of the planner.
//   - large.go: large nodes and a large cluster, for benchmarks and allocation limits.
//
// The contents of images have one-letter names: [Digest] of "a" is the digest of the content "a".
// Every situation is observed at [Now] or a little later.
//
// The internal tests of package plan cannot import this package. A test that needs it must be
// external (package plan_test).
package plantest
