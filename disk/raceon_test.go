//go:build race

package disk

// slowed is set where every access to memory is checked: long tests take samples
// there.
const slowed = true
