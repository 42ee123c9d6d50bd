//go:build race

package main

// raced says that the race detector is on, which makes everything slow: what has many
// cases takes samples, and CI runs the tests without it too.
const raced = true
