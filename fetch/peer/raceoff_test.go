//go:build !race

package peer

const (
	watched   = false
	idlePeers = 99
)
