package main

import (
	"fmt"
	"log/slog"
	"os"

	slogmulti "github.com/samber/slog-multi"
	"golang.org/x/term"
)

// logOptions says where the log goes, and how it looks.
type logOptions struct {
	format string // text or json; "": text on a terminal, JSON elsewhere
	file   string // "": none; otherwise JSON, added to what is there
}

// open returns a logger that writes to stderr and to the file, both without the
// secrets that addresses may hold. done closes the file.
func (o logOptions) open(stderr *os.File) (log *slog.Logger, done func() error, err error) {
	handlers := []slog.Handler{}
	format := o.format
	if format == "" {
		format = "json"
		if term.IsTerminal(int(stderr.Fd())) {
			format = "text"
		}
	}
	switch format {
	case "text":
		handlers = append(handlers, slog.NewTextHandler(stderr, nil))
	case "json":
		handlers = append(handlers, slog.NewJSONHandler(stderr, nil))
	default:
		return nil, nil, fmt.Errorf("--log-format is %q: write text or json", format)
	}
	done = func() error { return nil }
	if o.file != "" {
		f, err := os.OpenFile(o.file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return nil, nil, fmt.Errorf("open log: %w", err)
		}
		handlers, done = append(handlers, slog.NewJSONHandler(f, nil)), f.Close
	}
	return slog.New(slogmulti.Pipe(redacted).Handler(slogmulti.Fanout(handlers...))), done, nil
}
