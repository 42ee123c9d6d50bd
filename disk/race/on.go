//go:build race

// Package race tells tests whether the race detector is on. It makes everything slow, so
// that a test of very many cases which one goroutine goes through takes samples with it.
// CI plays such a test whole without it too.
package race

// Enabled reports whether the race detector is on.
const Enabled = true
