//go:build race

package peer

// watched is set where every access to memory is checked, which takes memory itself.
const watched = true
