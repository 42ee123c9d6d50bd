//go:build !race

package disk

const slowed = false
