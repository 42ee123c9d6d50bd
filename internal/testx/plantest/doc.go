// Package plantest is support for tests of the planner and of what uses its plans.
//
//   - config.go: small configurations, observed states and copies. A test starts with
//     [TwoNodes] or [NewConfig], observes [EmptyDisks], adds copies and failures, and
//     plans for one node of it ([AsNode]).
//   - random.go: random situations, sensible or not ([Situation]), as many as the flag
//     -seeds says ([Seeds]).
//   - invariants.go: [CheckPlan] fails a test if a plan breaks a rule. The rules are
//     stated there a second time, without any code of the planner.
//   - large.go: large nodes and a large cluster, for benchmarks and allocation limits.
//
// Contents of images have one-letter names: [Digest] of "a" is the digest of the image
// content "a". Every situation is observed at [Now], or a little later.
//
// Package plan's own internal tests cannot import this package: write an external test
// (package plan_test) where a test needs it.
package plantest
