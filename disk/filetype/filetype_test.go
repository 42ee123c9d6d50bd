package filetype

import (
	"bytes"
	"strings"
	"testing"
)

// probeDescriptor is a transcription of the loop in QEMU's vmdk_probe, which reads byte by byte.
func probeDescriptor(b []byte) bool {
	for p := 0; p < len(b); {
		if b[p] == '#' {
			for p < len(b) && b[p] != '\n' {
				p++
			}
			p++
			continue
		}
		if b[p] == ' ' {
			for p < len(b) && b[p] == ' ' {
				p++
			}
			if p < len(b) && b[p] == '\r' {
				p++
			}
			if p == len(b) || b[p] != '\n' {
				return false
			}
			p++
			continue
		}
		for _, version := range []string{"1", "2", "3"} {
			for _, end := range []string{"\n", "\r\n"} {
				if bytes.HasPrefix(b[p:], []byte("version="+version+end)) {
					return true
				}
			}
		}
		return false
	}
	return false
}

// FuzzDescriptor checks that every text which QEMU opens as a VMDK descriptor is recognised, and no
// other one. QEMU reads the first 512 bytes.
func FuzzDescriptor(f *testing.F) {
	for _, s := range []string{
		"", "# x\nversion=1\n", "#\r\n  \r\nversion=3\r\n", " \n  \r\nversion=2\n", "\nversion=1\n", "version=1\r", " \rversion=1\n",
		"# Disk DescriptorFile\n", strings.Repeat("# \n \n", 100) + "version=1\n", "version=1\nversion=2\n", "#version=1\n", "version=4\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, want := isDescriptor(b), probeDescriptor(b); got != want {
			t.Errorf("isDescriptor(%q) = %t, want %t", b, got, want)
		}
		if probeDescriptor(b[:min(512, len(b))]) {
			if _, ok := Container(b[:min(HeadSize, len(b))]); !ok {
				t.Errorf("Container(%q) does not recognise a descriptor", b)
			}
		}
	})
}

// FuzzTypes checks that no function panics, and that each type has a name and a hint.
func FuzzTypes(f *testing.F) {
	for _, s := range append(containers, packed...) {
		f.Add(append(make([]byte, s.offset), s.bytes...))
	}
	f.Add([]byte("<html>"))
	f.Add(append(make([]byte, 510), dmgMagic...))
	f.Add([]byte(vhdMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, identify := range []func([]byte) (Type, bool){Container, Mistake, ContainerByTrailer, MistakeByTrailer} {
			if typ, ok := identify(b); ok && (typ.Name == "" || typ.Hint == "") {
				t.Errorf("%q: %+v", b, typ)
			}
		}
	})
}
