package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	slogmulti "github.com/samber/slog-multi"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/seed-26586806/backing-image-manager/fetch/text"
)

// logOptions are the destinations and the format of the daemon's log.
type logOptions struct {
	format logFormat
	file   string // JSON is appended to this file; "" means no file
	opened *os.File
}

// logFormat is the format of the log on stderr.
type logFormat string

const (
	autoLog logFormat = "auto" // text on a terminal, otherwise JSON
	textLog logFormat = "text"
	jsonLog logFormat = "json"
)

// open returns a logger that writes to stderr and to the file. The logger removes the secrets
// in addresses. The function done closes the file.
func (o *logOptions) open(stderr *os.File) (log *slog.Logger, done func() error, err error) {
	handlers := []slog.Handler{}
	if o.format == textLog || o.format == autoLog && term.IsTerminal(int(stderr.Fd())) {
		handlers = append(handlers, slog.NewTextHandler(stderr, redacted))
	} else {
		handlers = append(handlers, slog.NewJSONHandler(stderr, redacted))
	}
	done = func() error { return nil }
	if o.file != "" {
		if o.opened, err = openLog(o.file); err != nil {
			return nil, nil, err
		}
		handlers, done = append(handlers, slog.NewJSONHandler(o.opened, redacted)), o.opened.Close
	}
	return slog.New(slogmulti.Fanout(handlers...)), done, nil
}

func openLog(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return f, nil
}

// reopen opens the log file again after each signal, because another program may have renamed the
// file. If this fails, the log continues in the old file. reopen returns when ctx is done.
func (o *logOptions) reopen(ctx context.Context, signals <-chan os.Signal, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		if o.opened == nil {
			continue
		}
		named, err := openLog(o.file)
		if err == nil {
			err = errors.Join(unix.Dup3(int(named.Fd()), int(o.opened.Fd()), unix.O_CLOEXEC), named.Close())
		}
		if err != nil {
			log.Error("cannot open the log file again: the log continues in the old file", "error", err)
		}
	}
}

// once returns a function that passes each text to warn once.
func once(warn func(text string)) func(text string) {
	var passed sync.Map
	return func(text string) {
		if _, again := passed.LoadOrStore(text, true); !again {
			warn(text)
		}
	}
}

// logWarning returns a function that logs each text once as a warning.
func logWarning(log *slog.Logger) func(text string) {
	return once(func(text string) { log.Warn("some credential files are ignored", "problem", text) })
}

// redacted are the options of handlers that remove the secrets from the addresses in messages and
// attributes, and characters that are not printable: the formats escape only some of them.
var redacted = &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(cleanLog(a.Value.String()))
	case slog.KindAny: // a handler would format the value by reflection, and could print a secret in it
		a.Value = slog.StringValue(cleanLog(fmt.Sprintf("%+v", a.Value.Any())))
	}
	return a
}}

// cleanLog returns a text of a record without secrets and control characters. Line breaks stay, because
// the formats escape them.
func cleanLog(message string) string { return text.Lines(text.Redact(message)) }
