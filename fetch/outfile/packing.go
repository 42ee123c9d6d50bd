package outfile

import "fmt"

// Packing is how a file is packed; "" is not at all.
type Packing string

// The packings that there are.
const (
	Plain Packing = ""
	Gzip  Packing = "gzip"
	Zstd  Packing = "zstd"
)

// ParsePacking reads the name of a packing.
func ParsePacking(s string) (Packing, error) {
	switch p := Packing(s); p {
	case Plain, Gzip, Zstd:
		return p, nil
	}
	return "", fmt.Errorf("packing %q is not known: use gzip or zstd", s)
}

// Ending is what the names of files end in that are packed so.
func (p Packing) Ending() string {
	return map[Packing]string{Gzip: ".gz", Zstd: ".zst"}[p]
}
