package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
)

// briefHandler writes records for people who look at a terminal: without time and
// level, and without the start of work, since the bars show that.
type briefHandler struct {
	w     io.Writer
	attrs []slog.Attr
}

func (h briefHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}

func (h briefHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "started" {
		return nil
	}
	var words []string
	word := func(a slog.Attr) bool {
		switch a.Key {
		case "action", "copy":
			words = append(words, a.Value.String())
		case "seconds":
			words = append(words, fmt.Sprintf("in %.1f s", a.Value.Float64()))
		default:
			words = append(words, a.Key+": "+oneLine(a.Value.String()))
		}
		return true
	}
	for _, a := range h.attrs {
		word(a)
	}
	r.Attrs(word)
	_, err := fmt.Fprintf(h.w, "%s: %s\n", r.Message, strings.Join(words, " "))
	return err
}

func (h briefHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.attrs = append(slices.Clip(h.attrs), attrs...)
	return h
}

func (h briefHandler) WithGroup(string) slog.Handler { return h }
