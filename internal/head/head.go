// Package head keeps the beginning of what a child process writes.
package head

// maxText limits the bytes that a Buffer keeps.
const maxText = 4096

// Buffer keeps the first bytes that are written to it, and drops the rest: a child may write any amount of errors.
type Buffer struct{ text []byte }

func (b *Buffer) Write(p []byte) (int, error) {
	b.text = append(b.text, p[:min(len(p), maxText-len(b.text))]...)
	return len(p), nil
}

func (b *Buffer) String() string { return string(b.text) }
