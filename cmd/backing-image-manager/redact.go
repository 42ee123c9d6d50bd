package main

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
)

// redacted is a middleware that takes user info, query and fragment out of
// whatever looks like a URL, in messages and attributes.
func redacted(next slog.Handler) slog.Handler { return redactor{next} }

type redactor struct{ next slog.Handler }

func (h redactor) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h redactor) Handle(ctx context.Context, r slog.Record) error {
	clean := slog.NewRecord(r.Time, r.Level, redactText(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(redactAttr(a))
		return true
	})
	return h.next.Handle(ctx, clean)
}

func (h redactor) WithAttrs(attrs []slog.Attr) slog.Handler {
	return redactor{h.next.WithAttrs(redactAttrs(attrs))}
}

func (h redactor) WithGroup(name string) slog.Handler { return redactor{h.next.WithGroup(name)} }

func redactAttrs(attrs []slog.Attr) []slog.Attr {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = redactAttr(a)
	}
	return clean
}

// redactAttr makes text of what slog would have to look into with reflection:
// nobody can tell what is in there.
func redactAttr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		v = slog.StringValue(redactText(v.String()))
	case slog.KindGroup:
		v = slog.GroupValue(redactAttrs(v.Group())...)
	case slog.KindAny:
		v = slog.StringValue(redactText(fmt.Sprintf("%+v", v.Any())))
	}
	return slog.Attr{Key: a.Key, Value: v}
}

var anyURL = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>\\]+`)

func redactText(text string) string { return anyURL.ReplaceAllStringFunc(text, redactURL) }

// redactURL works on what need not be a valid URL: a parser would give up on some
// of those that hold a secret.
func redactURL(address string) string {
	scheme, rest, _ := strings.Cut(address, "://")
	if i := strings.IndexAny(rest, "?#"); i >= 0 {
		rest = rest[:i]
	}
	host, path := rest, ""
	if i := strings.Index(rest, "/"); i >= 0 {
		host, path = rest[:i], rest[i:]
	}
	return scheme + "://" + host[strings.LastIndex(host, "@")+1:] + path
}
