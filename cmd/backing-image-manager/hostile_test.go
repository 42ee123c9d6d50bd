package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// hostileText is a name or a message that a terminal could obey. Its second line looks like one of this
// program.
const hostileText = "x\x1b]0;title\x07\r\nerror: y\u0085\u2028\x9b31m\u009b31m\u202egnp\u2066\x7f\xff"

// wantLines checks that a text has a number of lines, and only printable characters.
func wantLines(t *testing.T, what, text string, n int) {
	t.Helper()
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) || strings.Count(text, "\n") != n {
		t.Errorf("%s is %q, want %d printable lines", what, text, n)
	}
}

func TestErrorsHaveOnePrintableLineEach(t *testing.T) {
	one := errors.New(hostileText)
	joined := errors.Join(one, fmt.Errorf("read %s: %w", hostileText, one), errors.Join(one, one))
	for _, tt := range []struct {
		err   error
		lines int
	}{
		{one, 1},
		{joined, 4},
		{fmt.Errorf("a message with several causes: %w, %w", one, one), 1},
		{fmt.Errorf("around: %w", joined), 1},
		{&status.NotReadyError{Lines: []error{one, one}}, 2},
		{errors.Join(errors.New("not ready within 1s"), &status.NotReadyError{Lines: []error{one, one}}), 3},
	} {
		var b bytes.Buffer
		writeError(&b, tt.err)
		wantLines(t, "the error", b.String(), tt.lines)
	}
}

func TestDiskReportIsPrintable(t *testing.T) {
	r := diskReport{model.Disk{Path: hostileText, UUID: hostileText, Unmanaged: []string{hostileText}, Copies: model.NewCopies(model.Copy{ID: ident.ID{Name: hostileText, UUID: hostileText}, UsedBy: hostileText})}, []string{hostileText}}
	wantLines(t, "the report", strings.Join(r.lines(), "\n")+"\n", 6)
}

func TestProgressIsPrintable(t *testing.T) {
	var m rateMeter
	lines := m.lines(time.Unix(0, 0), singleTransfer(model.Download, ident.ID{Name: hostileText, UUID: "6846a0b2"}, hostileText, &fetch.Progress{})(), 4000)
	wantLines(t, "the bars", strings.Join(lines, "\n")+"\n", 1)
}

func TestLogLinesArePrintable(t *testing.T) {
	dir := t.TempDir()
	for _, format := range []logFormat{textLog, jsonLog} {
		stderr, err := os.Create(filepath.Join(dir, "stderr"))
		if err != nil {
			t.Fatal(err)
		}
		defer stderr.Close()
		log, done, err := (&logOptions{format: format, file: filepath.Join(dir, "log")}).open(stderr)
		if err != nil {
			t.Fatal(err)
		}
		log.With("with", hostileText).Warn(hostileText, "text", hostileText, "error", errors.New(hostileText), slog.Group("in", "list", []string{hostileText}))
		if err := done(); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"stderr", "log"} {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			wantLines(t, "the log", string(data), 1)
			if name == "log" && !json.Valid(data) {
				t.Errorf("the log is %s", data)
			}
		}
		if err := os.Remove(filepath.Join(dir, "log")); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	(&progress{w: &b}).logger().With("copy", hostileText).Info(hostileText, "op", hostileText, "error", hostileText)
	wantLines(t, "the message on a terminal", b.String(), 1)
}

// A command that does not say how to continue ends with one word after a signal, and other errors stay.
func TestSignalsEndCommandsWithoutTheWordsOfLibraries(t *testing.T) {
	err := stopped(errors.Join(fmt.Errorf("read image.raw: %w", context.Canceled), errors.New("close the disk: input/output error")))
	got := strings.Join(errorLines(err), "\n")
	if want := "stopped\nclose the disk: input/output error"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
