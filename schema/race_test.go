//go:build race

package schema

// raced says that the race detector is on, which makes everything slow. CI runs the
// tests without it too.
const raced = true
