//go:build !race

package race

// Enabled reports whether the race detector is on.
const Enabled = false

// Fewer returns how many of n cases a test tries: all.
func Fewer(n, _ int) int { return n }
