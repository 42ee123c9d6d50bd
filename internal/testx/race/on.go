//go:build race

// Package race reports whether the race detector is enabled. The detector makes tests slow and cannot
// find errors in the code of a single goroutine. Tests with very many cases therefore run only a
// sample with the detector. The run without it covers all cases.
package race

// Enabled reports whether the race detector is enabled.
const Enabled = true

// Fewer returns how many of n cases a test runs. With the race detector, it returns one of every "of"
// cases.
func Fewer(n, of int) int { return max(1, n/of) }
