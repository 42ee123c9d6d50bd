//go:build !race

package race

// Enabled reports whether the race detector is on.
const Enabled = false

// Fewer is how many of n to try: all of them.
func Fewer(n, _ int) int { return n }
