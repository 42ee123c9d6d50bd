package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/seed-26586806/backing-image-manager"

// TestSummary converts the output of go test -json to human-readable lines. The output contains a
// test that passes, skips with the same reason in both runs, a failure with its output, a test that
// ends with a panic, and a package that does not compile.
func TestSummary(t *testing.T) {
	stream := `{"Action":"start","Package":"M/disk"}
{"Action":"run","Package":"M/disk","Test":"TestLock"}
{"Action":"output","Package":"M/disk","Test":"TestLock","Output":"=== RUN   TestLock\n"}
{"Action":"pass","Package":"M/disk","Test":"TestLock","Elapsed":0.1}
{"Action":"output","Package":"M/disk","Test":"TestQemu","Output":"    qemu_test.go:12: needs qemu-img (Debian package qemu-utils): it is not installed\n"}
{"Action":"output","Package":"M/disk","Test":"TestQemu","Output":"    testscript.go:609: WORK=$WORK\n"}
{"Action":"output","Package":"M/disk","Test":"TestQemu","Output":"--- SKIP: TestQemu (0.00s)\n"}
{"Action":"skip","Package":"M/disk","Test":"TestQemu","Elapsed":0}
{"Action":"output","Package":"M/disk","Output":"ok  \tM/disk\t(cached)\n"}
{"Action":"pass","Package":"M/disk","Elapsed":1.5}
{"Action":"output","Package":"M/fetch","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"M/fetch","Test":"TestBad","Output":"    a_test.go:3: got 1; want 2\n"}
{"Action":"fail","Package":"M/fetch","Test":"TestBad","Elapsed":0}
{"Action":"output","Package":"M/fetch","Test":"TestPanic","Output":"panic: no disk\n"}
{"Action":"output","Package":"M/fetch","Output":"FAIL\tM/fetch\t0.1s\n"}
{"Action":"fail","Package":"M/fetch","Elapsed":0.1}
{"ImportPath":"M/schema","Action":"build-output","Output":"schema/a.go:1:1: expected package\n"}
{"ImportPath":"M/schema","Action":"build-fail"}
{"Action":"fail","Package":"M/schema","Elapsed":0,"FailedBuild":"M/schema"}
{"Action":"skip","Package":"M/empty","Elapsed":0}
`
	const want = `ok    disk  1.5s  (1 skipped)  (cached)
    a_test.go:3: got 1; want 2
panic: no disk
FAIL	M/fetch	0.1s
FAIL  fetch  0.1s
schema/a.go:1:1: expected package
FAIL  schema  0.0s
`
	const wantSummary = `
Skipped:
  needs qemu-img (Debian package qemu-utils): it is not installed
    disk.TestQemu

Failed:
  fetch.TestBad
  fetch.TestPanic
  schema

1 passed, 3 failed, 1 skipped
`
	var out bytes.Buffer
	r := newResults(&out)
	if err := r.read(strings.NewReader(strings.ReplaceAll(stream, "M/", module+"/"))); err != nil {
		t.Fatal(err)
	}
	r.summary()
	if got, want := out.String(), strings.ReplaceAll(want, "M/", module+"/")+wantSummary; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// failed returns the output of go test -json for a package in which one test failed with a line of output.
func failed(pkg, test, line string) string {
	return strings.NewReplacer("PKG", module+"/"+pkg, "TEST", test, "LINE", line).Replace(`{"Action":"output","Package":"PKG","Test":"TEST","Output":"LINE\n"}
{"Action":"fail","Package":"PKG","Test":"TEST","Elapsed":0}
{"Action":"fail","Package":"PKG","Elapsed":0.1}
`)
}

// Tests that the load of the machine may have made fail are run again, without the others. What a second run cannot take back is not.
func TestWhichTestsRunAgain(t *testing.T) {
	late := `{"Action":"output","Package":"` + module + `/disk","Test":"TestOne","Output":"=== RUN TestOne\n"}` + "\n" +
		failed("disk", "TestOne/a.late", "    a_test.go:3: too late") + failed("fetch", "TestOne", "    a_test.go:3: too late")
	for _, tt := range []struct {
		name, stream string
		want         []string
	}{
		{"late", late, []string{`disk ^TestOne$/^a\.late$`, "fetch ^TestOne$"}},
		{"race", late + failed("schema", "TestOne", "WARNING: DATA RACE"), nil},
		{"violation", failed("internal/testx/chaos", "TestOne", "    chaos_test.go:61: violation at 3s: a copy is lost"), nil},
		{"race of another test", late + failed("schema", "TestOne", "    testing.go:1490: race detected during execution of test"), nil},
		{"killed", failed("disk", "TestOne", "signal: killed"), nil},
		{"panic", failed("disk", "TestOne", "panic: no disk"), nil},
		{"package", strings.ReplaceAll(`{"Action":"output","Package":"M/disk","Output":"exit status 2\n"}
{"Action":"fail","Package":"M/disk","Elapsed":0.1}
`, "M/", module+"/"), nil},
	} {
		var out bytes.Buffer
		r := newResults(&out)
		if err := r.read(strings.NewReader(tt.stream)); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range r.retriable() {
			got = append(got, p.pkg+" "+p.pattern())
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
	var out bytes.Buffer
	r := newResults(&out)
	if err := r.read(strings.NewReader(late)); err != nil {
		t.Fatal(err)
	}
	r.passedAlone()
	out.Reset()
	r.summary()
	const want = `
Failed beside other packages, and passed alone:
  disk.TestOne
  disk.TestOne/a.late
  fetch.TestOne

0 passed, 0 failed, 0 skipped
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
