//go:build race

// Package race tells tests whether the race detector is on. It makes everything slow and
// finds nothing in what one goroutine does, so that a test of very many cases takes samples
// with it. CI plays all of them without it too.
package race

// Enabled reports whether the race detector is on.
const Enabled = true

// Fewer is how many of n to try: with the race detector one of each of.
func Fewer(n, of int) int { return max(1, n/of) }
