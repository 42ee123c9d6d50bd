package race

import "testing"

// Skip skips a test if the race detector is enabled. It is for tests in which a single goroutine
// processes many bytes or cases.
func Skip(t testing.TB) {
	t.Helper()
	if Enabled {
		t.Skip("the test uses one goroutine and runs only without the race detector")
	}
}
