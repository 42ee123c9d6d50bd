//go:build race

package peer

const (
	// watched is set where every access to memory is checked, which takes time, and
	// memory itself. CI runs the tests without it too.
	watched   = true
	idlePeers = 24
)
