//go:build race

// Package race reports whether the race detector is on. The detector makes tests slow and finds
// nothing in code of one goroutine, so tests with very many cases try a sample with it. The run
// without it tries all cases.
package race

// Enabled reports whether the race detector is on.
const Enabled = true

// Fewer returns how many of n cases a test tries: one of every "of" cases with the race detector.
func Fewer(n, of int) int { return max(1, n/of) }
