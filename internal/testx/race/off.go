//go:build !race

package race

// Enabled reports whether the race detector is enabled.
const Enabled = false

// Fewer returns how many of n cases a test runs. Without the race detector it returns n.
func Fewer(n, _ int) int { return n }
