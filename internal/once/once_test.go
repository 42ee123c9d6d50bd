package once

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

func TestConditionsAreLoggedAtTheirBeginningAndEnd(t *testing.T) {
	full := Condition{Begins: "disk full", Ends: "disk has space again", Of: "disk", Why: "error"}
	refused := Condition{Begins: "refused", Ends: "accepted again", Of: "server", Why: "error", EachReason: true}
	var output bytes.Buffer
	plain := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	l := New(slog.New(slog.NewTextHandler(&output, &slog.HandlerOptions{ReplaceAttr: plain})))
	for _, step := range []struct {
		set  func()
		want string
	}{
		{func() { l.Set(full, "d1", "") }, ""},
		{func() { l.Set(full, "d1", "no space", "effect", "none") }, `level=WARN msg="disk full" disk=d1 error="no space" effect=none`},
		{func() { l.Set(full, "d1", "still no space") }, ""},
		{func() { l.Set(full, "d2", "no space") }, `level=WARN msg="disk full" disk=d2 error="no space"`},
		{func() { l.Set(full, "d1", "") }, `level=INFO msg="disk has space again" disk=d1`},
		{func() { l.Set(full, "d1", "") }, ""},
		{func() { l.Set(full, "d1", "no space") }, `level=WARN msg="disk full" disk=d1 error="no space"`},
		{func() { l.SetError(refused, "s", errors.New("503")) }, `level=WARN msg=refused server=s error=503`},
		{func() { l.SetError(refused, "s", errors.New("503")) }, ""},
		{func() { l.SetError(refused, "s", errors.New("404")) }, `level=WARN msg=refused server=s error=404`},
		{func() { l.Set(Condition{Begins: "a", Ends: "b", Why: "error"}, "", "c") }, `level=WARN msg=a error=c`},
		{func() { l.SetError(refused, "s", nil) }, `level=INFO msg="accepted again" server=s`},
	} {
		output.Reset()
		step.set()
		if got := strings.TrimSuffix(output.String(), "\n"); got != step.want {
			t.Errorf("the log has %q, want %q", got, step.want)
		}
	}
}
