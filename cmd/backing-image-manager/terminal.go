package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// terminal returns the file behind w if it is a terminal.
func terminal(w io.Writer) (*os.File, bool) {
	f, ok := w.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// colourful reports whether colours may be written to w.
func colourful(w io.Writer) bool {
	_, tty := terminal(w)
	return tty && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
