//go:build race

package reconcile

// raced says that the race detector is on, which makes everything slow.
const raced = true
