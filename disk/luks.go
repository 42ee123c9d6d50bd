package disk

import (
	"bytes"
	"encoding/binary"
)

const luksMagic = "LUKS\xba\xbe"

// isLUKS reports whether a raw disk with this first sector is encrypted as a
// whole, by LUKS of version 1 or 2. There is no later version to open.
func isLUKS(head []byte) bool {
	rest, ok := bytes.CutPrefix(head, []byte(luksMagic))
	if !ok {
		return false
	}
	version := binary.BigEndian.Uint16(rest)
	return version == 1 || version == 2
}
