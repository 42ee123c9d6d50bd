package checksum

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"golang.org/x/crypto/blake2b"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

var update = flag.Bool("update", false, "write the table of checksum lists into docs/sources.md")

// listForm is a form of checksum lists with what becomes of it.
type listForm struct {
	by   string // the program or the vendor that writes it
	list string // name of the list, or the path of a file below track/testdata/vendors
	// image is the path of the image, relative to the folder of the list; empty: a.img.
	image string
	text  string // the list, with {sha256}, {sha512}, {blake2b}, {md5} and {other} (a SHA-256 of another file) for digests
	run   string // a command that writes it, in a folder with a.img, amd64/disk.raw and arm64/disk.raw; empty: none

	want   string // algorithms of the digests that are found, with "packed" for those of the packed file; empty: none
	word   string // in the error
	signed bool   // a signature is required
	entity string // the encoding: "utf-16le", "utf-16be", or empty
}

// listForms are the forms in the order of the table in docs/sources.md.
var listForms = []listForm{
	{by: "sha256sum", list: "SHA256SUMS", text: "{other}  b.img\n{sha256}  a.img\n", run: "sha256sum b.img a.img", want: "SHA-256"},
	{by: "sha512sum -b", list: "SHA512SUMS", text: "{sha512} *a.img\n", run: "sha512sum -b a.img", want: "SHA-512"},
	{by: "sha256sum --tag", list: "CHECKSUM", text: "SHA256 (a.img) = {sha256}\n", run: "sha256sum --tag a.img", want: "SHA-256"},
	{by: "cksum -a sha512", list: "CHECKSUM", text: "SHA512 (a.img) = {sha512}\n", run: "cksum -a sha512 a.img", want: "SHA-512"},
	{by: "sha256sum, name with a backslash", list: "SHA256SUMS", image: `back\slash.img`, text: `\{sha256}  back\\slash.img` + "\n", run: `sha256sum back\slash.img`, want: "SHA-256"},
	{by: "sha256sum --tag, name with a backslash", list: "SHA256SUMS", image: `back\slash.img`, text: `\SHA256 (back\\slash.img) = {sha256}` + "\n", run: `sha256sum --tag back\slash.img`, want: "SHA-256"},
	{by: "sha256sum of several folders", list: "SHA256SUMS", image: "amd64/disk.raw", text: "{sha256}  ./amd64/disk.raw\n{other}  ./arm64/disk.raw\n", run: "sha256sum ./amd64/disk.raw ./arm64/disk.raw", want: "SHA-256"},
	{by: "sha256sum of several folders, image elsewhere", list: "SHA256SUMS", image: "../mirror/disk.raw", text: "{sha256}  ./amd64/disk.raw\n{other}  ./arm64/disk.raw\n", run: "sha256sum ./amd64/disk.raw ./arm64/disk.raw", word: "listed with more than one checksum"},
	{by: "sha256sum from the standard input", list: "a.img.sha256", text: "{sha256}  -\n", run: "sh -c sha256sum<a.img", want: "SHA-256"},
	{by: "cut -d' ' -f1", list: "a.img.sha256", text: "{sha256}\n", want: "SHA-256"},
	{by: "cut -d' ' -f1, signed", list: "a.img.sha256", text: "{sha256}\n", signed: true, word: "the signed list has no file name"},
	{by: "cut -d' ' -f1, of a packed file", list: "a.raw.xz.sha256", image: "a.raw.xz", text: "{sha256}\n", want: "packed SHA-256"},
	{by: "cut -d' ' -f1, of the unpacked file", list: "a.raw.sha256", image: "a.raw.xz", text: "{sha256}\n", want: "SHA-256"},
	{by: "shasum -a 512 -b", list: "SHA512SUMS", text: "{sha512} *a.img\n", run: "shasum -a 512 -b a.img", want: "SHA-512"},
	{by: "shasum -a 256 -U", list: "SHA256SUMS", text: "{sha256} Ua.img\n", run: "shasum -a 256 -U a.img", word: `the only name is "Ua.img"`},
	{by: "openssl dgst -sha256", list: "a.img.sha256", text: "SHA2-256(a.img)= {sha256}\n", run: "openssl dgst -sha256 a.img", want: "SHA-256"},
	{by: "openssl dgst, version 1", list: "a.img.sha256", text: "SHA256(a.img)= {sha256}\n", want: "SHA-256"},
	{by: "openssl dgst -r -sha512", list: "a.img.sha512", text: "{sha512} *a.img\n", run: "openssl dgst -r -sha512 a.img", want: "SHA-512"},
	{by: "openssl dgst -sha256, standard input", list: "a.img.sha256", text: "SHA2-256(stdin)= {sha256}\n", run: "sh -c openssl<a.img\tdgst\t-sha256", want: "SHA-256"},
	{by: "openssl dgst -sha3-256", list: "a.img.dgst", text: "SHA3-256(a.img)= {other}\n", run: "openssl dgst -sha3-256 a.img", word: "only other checksums: sha3256"},
	{by: "openssl dgst -sha512-256", list: "a.img.dgst", text: "SHA2-512/256(a.img)= {other}\n", run: "openssl dgst -sha512-256 a.img", word: "only other checksums: sha2512256"},
	{by: "openssl dgst -blake2b512", list: "a.img.dgst", text: "BLAKE2B-512(a.img)= {blake2b}\n", run: "openssl dgst -blake2b512 a.img", word: "only other checksums: blake2b512"},
	{by: "b2sum", list: "b2sums.txt", text: "{blake2b}  a.img\n", run: "b2sum a.img", word: "only other checksums: b2"},
	{by: "b2sum --tag", list: "CHECKSUM", text: "BLAKE2b (a.img) = {blake2b}\n", run: "b2sum --tag a.img", word: "only other checksums: blake2b"},
	{by: "b2sum and sha512sum, without headings", list: "DIGESTS", text: "{blake2b}  a.img\n{sha512}  a.img\n", word: "listed with more than one checksum"},
	{by: "b3sum", list: "a.img.b3", text: "{other}  a.img\n", word: "only other checksums: b3"},
	{by: "md5sum", list: "MD5SUMS", text: "{md5}  a.img\n", run: "md5sum a.img", word: "only other checksums: md5"},
	{by: "BSD sha512", list: "SHA512", text: "SHA512 (a.img) = {sha512}\n", want: "SHA-512"},
	{by: "BSD sha256 -r", list: "SHA256", text: "{sha256} a.img\n", want: "SHA-256"},
	{by: "BSD md5", list: "MD5", text: "MD5 (a.img) = {md5}\n", word: "only other checksums: md5"},
	{by: "digest -v, Solaris", list: "a.img.sha256", text: "sha256 (a.img) = {sha256}\n", want: "SHA-256"},
	{by: "PowerShell Get-FileHash | Out-File", list: "a.img.sha256", entity: "utf-16le",
		text: "\r\nAlgorithm       Hash                                                                   Path\r\n" +
			"---------       ----                                                                   ----\r\n" +
			"SHA256          {SHA256}       C:\\images\\a.img\r\n\r\n\r\n", want: "SHA-256"},
	{by: "PowerShell (Get-FileHash a.img).Hash > FILE", list: "a.img.sha256", entity: "utf-16le", text: "{SHA256}\r\n", want: "SHA-256"},
	{by: "PowerShell, lines of a script", list: "SHA256SUMS.txt", entity: "utf-16be", text: "{SHA256}  a.img\r\n", want: "SHA-256"},
	{by: "PowerShell Get-FileHash | Export-Csv", list: "SHA256SUMS.csv", text: "\"Algorithm\",\"Hash\",\"Path\"\r\n\"SHA256\",\"{SHA256}\",\"C:\\images\\a.img\"\r\n", word: "lists no checksums"},
	{by: "certutil -hashfile", list: "a.img.sha256", text: "SHA256 hash of a.img:\r\n{sha256}\r\nCertUtil: -hashfile command completed successfully.\r\n", want: "SHA-256"},
	{by: "an editor of Windows", list: "SHA256SUMS", text: "\ufeff{sha256}  .\\images\\a.img\r\n", want: "SHA-256"},
	{by: "a script, algorithm first", list: "checksums.txt", text: "sha256:{sha256}  a.img\n", want: "SHA-256"},
	{by: "a script, name first", list: "checksums.txt", text: "b.img:{other}\na.img:{sha256}\n", want: "SHA-256"},
	{by: "a script, both", list: "a.img.txt", text: "SHA256: {sha256}\nSHA512: {sha512}\n", want: "SHA-512 SHA-256"},
	{by: "several tags of one file", list: "CHECKSUM", text: "MD5 (a.img) = {md5}\nSHA256 (a.img) = {sha256}\nSHA512 (a.img) = {sha512}\n", want: "SHA-512 SHA-256"},
	{by: "a list that was cut off", list: "SHA256SUMS", text: "{other}  b.img\nc1bf071468fb7576f56571c790c3898dc8bbf4ead5", word: `"a.img" is not listed`},
	{by: "a web page", list: "SHA256SUMS", text: "<html><body>Not here</body></html>", word: "lists no checksums"},
	{by: "Gentoo DIGESTS", list: "a.img.DIGESTS", text: "# BLAKE2B HASH\n{blake2b}  a.img\n# SHA512 HASH\n{sha512}  a.img\n", want: "SHA-512"},
	{by: "Gentoo DIGESTS, another hash", list: "a.img.DIGESTS", text: "# WHIRLPOOL HASH\n{blake2b}  a.img\n", word: "only other checksums: whirlpool"},
	{by: "Flatcar", list: "flatcar/t2/amd64-usr/4593.2.0/flatcar_production_qemu_image.img.DIGESTS", image: "flatcar_production_qemu_image.img", want: "SHA-512"},
	{by: "Flatcar, signed", list: "flatcar/t2/amd64-usr/4593.2.0/flatcar_production_qemu_image.img.DIGESTS.asc", image: "flatcar_production_qemu_image.img", want: "SHA-512"},
	{by: "Fedora", list: "fedora/t2/pub/fedora/linux/releases/43/Cloud/x86_64/images/Fedora-Cloud-43-1.6-x86_64-CHECKSUM", image: "Fedora-Cloud-Base-Generic-43-1.6.x86_64.qcow2", want: "SHA-256"},
	{by: "Rocky Linux", list: "rocky/t2/pub/rocky/9/images/x86_64/CHECKSUM", image: "Rocky-9-GenericCloud-Base-9.8-20260602.0.x86_64.qcow2", want: "SHA-256"},
	{by: "AlmaLinux", list: "alma/t2/almalinux/10/cloud/x86_64/images/CHECKSUM", image: "AlmaLinux-10-GenericCloud-10.2-20260602.0.x86_64.qcow2", want: "SHA-256"},
	{by: "CentOS Stream", list: "centos/t1/centos/9-stream/x86_64/images/CentOS-Stream-GenericCloud-9-20260518.0.x86_64.qcow2.SHA256SUM", image: "CentOS-Stream-GenericCloud-9-20260518.0.x86_64.qcow2", want: "SHA-256"},
	{by: "Debian", list: "debian/t2/images/cloud/bookworm/latest/SHA512SUMS", image: "debian-12-genericcloud-amd64.qcow2", want: "SHA-512"},
	{by: "Alpine", list: "alpine/t2/alpine/v3.23/releases/cloud/generic_alpine-3.23.10-x86_64-uefi-cloudinit-r0.qcow2.sha512", image: "generic_alpine-3.23.10-x86_64-uefi-cloudinit-r0.qcow2", want: "SHA-512"},
	{by: "openSUSE", list: "opensuse/t2/tumbleweed/appliances/openSUSE-Tumbleweed-Minimal-VM.x86_64-1.0.0-Cloud-Snapshot20260602.qcow2.sha256", image: "openSUSE-Tumbleweed-Minimal-VM.x86_64-1.0.0-Cloud-Snapshot20260602.qcow2", want: "SHA-256"},
	{by: "openSUSE, link to the newest build", list: "a.qcow2.sha256", image: "a.qcow2", text: "{sha256} a-1.0.0-Build4.2.qcow2\n", want: "SHA-256"},
	{by: "openSUSE, link to the newest build, signed", list: "a.qcow2.sha256", image: "a.qcow2", text: "{sha256} a-1.0.0-Build4.2.qcow2\n", signed: true, word: `the only name is "a-1.0.0-Build4.2.qcow2"`},
	{by: "a store that gives files new names", list: "SHA256SUMS", image: "0f3a9c", text: "{sha256}  a.img\n", word: `the only name is "a.img"`},
	{by: "SourceForge", list: "SHA256SUMS", image: "files/a.iso/download", text: "{other}  b.iso\n{sha256}  a.iso\n", want: "SHA-256"},
	{by: "Ubuntu", list: "SHA256SUMS", image: "ubuntu-24.04-server-cloudimg-amd64.img", text: "{other} *ubuntu-24.04-server-cloudimg-amd64.tar.gz\n{sha256} *ubuntu-24.04-server-cloudimg-amd64.img\n", want: "SHA-256"},
	{by: "Arch Linux", list: "sha256sums.txt", image: "Arch-Linux-x86_64-cloudimg.qcow2", text: "{sha256}  Arch-Linux-x86_64-cloudimg.qcow2\n", want: "SHA-256"},
	{by: "NixOS", list: "nixos.iso.sha256", image: "nixos.iso", text: "{sha256}  nixos-minimal-25.05.802216.55d1f923c480-x86_64-linux.iso\n", want: "SHA-256"},
	{by: "OpenWrt", list: "sha256sums", image: "openwrt-x86-64-generic-ext4-combined.img.gz", text: "{sha256} *openwrt-x86-64-generic-ext4-combined.img.gz\n{other} *packages/kmod-a.ipk\n", want: "packed SHA-256"},
	{by: "FreeBSD", list: "CHECKSUM.SHA512-FreeBSD-14.3-RELEASE-amd64", image: "FreeBSD-14.3-RELEASE-amd64-ufs.qcow2.xz", text: "SHA512 (FreeBSD-14.3-RELEASE-amd64-ufs.qcow2.xz) = {sha512}\n", want: "packed SHA-512"},
	{by: "NetBSD", list: "SHA512", image: "images/NetBSD-10.1-amd64-live.img.gz", text: "SHA512 (amd64/binary/kernel/netbsd-GENERIC.gz) = {blake2b}\nSHA512 (images/NetBSD-10.1-amd64-live.img.gz) = {sha512}\n", want: "packed SHA-512"},
	{by: "OpenBSD, by signify -S -e", list: "SHA256.sig", image: "install78.img", text: "untrusted comment: verify with openbsd-78-base.pub\nRWS3/nvFmk4SWZYBbr7QEOPEiHpYs2L1fzDQa2yaoUCKGUhOiqGHSm9iiwCFlTCGNXqBBbqVb4RIDH+6X7qbPrHsSNn4qKFsmQI=\n" +
		"SHA256 (install78.img) = {sha256}\n", want: "SHA-256"},
	{by: "goreleaser, cosign", list: "checksums.txt", text: "{other}  tool_1.2.3_linux_amd64.tar.gz\n{sha256}  a.img\n", want: "SHA-256"},
	{by: "Release file of a Debian archive", list: "Release", image: "main/installer-amd64/current/images/netboot/mini.iso", want: "SHA-256",
		text: "MD5Sum:\n {md5} 65011712 main/installer-amd64/current/images/netboot/mini.iso\nSHA256:\n {sha256} 65011712 main/installer-amd64/current/images/netboot/mini.iso\n"},
}

// formsImage is the image of which the lists have the digests.
const formsImage = "an image for checksum lists\n"

// formDigests are the digests for the placeholders in lists.
func formDigests() *strings.Replacer {
	a, b, c := sha256.Sum256([]byte(formsImage)), sha512.Sum512([]byte(formsImage)), blake2b.Sum512([]byte(formsImage))
	digits := hex.EncodeToString(a[:])
	return strings.NewReplacer("{sha256}", digits, "{SHA256}", strings.ToUpper(digits), "{sha512}", hex.EncodeToString(b[:]), "{blake2b}", hex.EncodeToString(c[:]),
		"{other}", other, "{md5}", hash256[:32])
}

// content returns the bytes of the list.
func (f listForm) content(t *testing.T) []byte {
	t.Helper()
	if strings.Contains(f.list, "/") {
		b, err := os.ReadFile(filepath.Join("../track/testdata/vendors", f.list))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	text := formDigests().Replace(f.text)
	if f.entity == "" {
		return []byte(text)
	}
	var b []byte
	for _, u := range utf16.Encode([]rune("\ufeff" + text)) {
		low, high := byte(u), byte(u>>8)
		if f.entity == "utf-16be" {
			low, high = high, low
		}
		b = append(b, low, high)
	}
	return b
}

// check looks up the image in a list, and compares the result.
func (f listForm) check(t *testing.T, content []byte) {
	t.Helper()
	image := f.image
	if image == "" {
		image = "a.img"
	}
	without := Renamed
	if f.signed {
		without = Named
	}
	name := path.Base(f.list)
	packed := slices.Contains([]string{".gz", ".xz", ".zst", ".bz2"}, path.Ext(image))
	found, err := Parse(content, name).Find("/x/"+name, []string{"/x/" + image}, packed, without)
	if f.word != "" {
		if err == nil || !strings.Contains(err.Error(), f.word) {
			t.Errorf("got %v, %v, want an error with %q", found, err, f.word)
		}
		return
	}
	var got []string
	for _, d := range found.Stored {
		got = append(got, map[ident.Algorithm]string{ident.SHA256: "SHA-256", ident.SHA512: "SHA-512"}[d.Algorithm()])
	}
	for _, d := range found.Packed {
		got = append(got, map[ident.Algorithm]string{ident.SHA256: "packed SHA-256", ident.SHA512: "packed SHA-512"}[d.Algorithm()])
	}
	if err != nil || strings.Join(got, " ") != f.want {
		t.Errorf("got %v, %v, want %s", found, err, f.want)
	}
	for _, d := range slices.Concat(found.Stored, found.Packed) {
		h := d.Algorithm().New()
		fmt.Fprint(h, formsImage)
		if want := d.Algorithm().Digest(h); d != want && !strings.Contains(f.list, "/") {
			t.Errorf("got the %v of another file", d)
		}
	}
}

// TestFormsOfChecksumLists looks up an image in the lists of many programs and vendors. Where a program is installed, its
// output counts, too.
func TestFormsOfChecksumLists(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.img": formsImage, "b.img": "b", "amd64/disk.raw": formsImage, "arm64/disk.raw": "b", `back\slash.img`: formsImage} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range listForms {
		t.Run(f.by, func(t *testing.T) {
			f.check(t, f.content(t))
			if f.run == "" {
				return
			}
			args := strings.SplitN(f.run, " ", map[bool]int{true: 3, false: -1}[strings.HasPrefix(f.run, "sh ")])
			program := strings.FieldsFunc(args[len(args)-1], func(r rune) bool { return r == '<' })[0]
			if args[0] != "sh" {
				program = args[0]
			}
			if _, err := exec.LookPath(program); err != nil {
				t.Skipf("%s is not installed", program)
			}
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Dir = dir
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %v", cmd, err)
			}
			f.check(t, out)
		})
	}
}

// TestDocumentedChecksumLists compares the table in docs/sources.md with the forms.
func TestDocumentedChecksumLists(t *testing.T) {
	const file, begin, end = "../../docs/sources.md", "<!-- checksum lists: go test ./fetch/checksum -run TestDocumentedChecksumLists -update -->\n", "<!-- end of checksum lists -->\n"
	var b strings.Builder
	b.WriteString("\n| written by | list | line | digest that counts |\n|---|---|---|---|\n")
	for _, f := range listForms {
		line := f.text
		if line == "" {
			line = string(f.content(t))
		}
		image := path.Base(f.image)
		if f.image == "" {
			image = "a.img"
		}
		line = strings.TrimPrefix(formDigests().Replace(line), "\ufeff")
		for l := range strings.Lines(line) { // the line of the image, or else the last one with a checksum
			if hexDigits.MatchString(l) && !strings.HasPrefix(l, "RWS") {
				line = l
			}
			if strings.Contains(l, image) && hexDigits.MatchString(l) {
				break
			}
		}
		line = strings.ReplaceAll(strings.TrimSpace(hexDigits.ReplaceAllString(line, "HEX")), image, "NAME")
		outcome := strings.ReplaceAll(f.want, "packed SHA", "of the packed file: SHA")
		if f.word != "" {
			outcome = "none: " + strings.TrimSuffix(f.word, ":")
		}
		fmt.Fprintf(&b, "| %s | `%s` | `%s` | %s |\n", strings.ReplaceAll(f.by, "|", `\|`), strings.ReplaceAll(path.Base(f.list), image, "NAME"), strings.Join(strings.Fields(line), " "), outcome)
	}
	b.WriteString("\n")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	want := before + begin + b.String() + end + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("the table of checksum lists in %s is not that of the test: run it with -update", file)
	}
}

var hexDigits = regexp.MustCompile(`[0-9A-Fa-f]{32,}`)

// hash256, hash512 and other are the hex digits of digests.
var (
	hash256 = strings.Repeat("a1", 32)
	hash512 = strings.Repeat("b2", 64)
	other   = strings.Repeat("c3", 32)
)

func TestSimilarNamesInChecksumList(t *testing.T) {
	const list = "debian-12.5-amd64.qcow2 debian-12.6-amd64.qcow2 debian-12.5-arm64.qcow2 debian-11.9-amd64.qcow2 image.raw SHA256SUMS"
	digest, err := ident.ParseDigest("sha256:" + hash256)
	if err != nil {
		t.Fatal(err)
	}
	var s List
	for name := range strings.FieldsSeq(list) {
		s.entries = append(s.entries, checksumEntry{name: "dir/" + name, digest: digest})
	}
	for base, want := range map[string]string{
		"imag.raw":                 "image.raw",
		"debian-12.7-amd64.qcow2":  "debian-12.5-amd64.qcow2 debian-12.6-amd64.qcow2 debian-11.9-amd64.qcow2",
		"ubuntu-24.04-arm64.qcow2": "",
		"":                         "",
	} {
		if got := strings.Join(s.similar(base), " "); got != want {
			t.Errorf("names similar to %q: got %q, want %q", base, got, want)
		}
	}
}

func FuzzParseChecksumList(f *testing.F) {
	f.Add([]byte(hash256+"  a.img\n"), "a.img")
	f.Add([]byte(hash512+" *dir/a.img\r\nSHA256 (b.img) = "+hash256+"\n"), "b.img")
	f.Add([]byte("-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n"+hash256+"\n"), "x")
	f.Add([]byte("\\"+hash256+"  a\\nb\nSHA512 () = "), "")
	f.Fuzz(func(t *testing.T, b []byte, base string) {
		s := Parse(b, base)
		found, err := s.digests("/", "/"+base)
		if err != nil && len(found) > 0 {
			t.Error("a digest was found although two digests conflict")
		}
		for _, d := range found {
			digits := strings.TrimPrefix(d.String(), "sha256:")
			utf16 := bytes.HasPrefix(b, []byte("\xff\xfe")) || bytes.HasPrefix(b, []byte("\xfe\xff"))
			if !utf16 && !strings.Contains(strings.ToLower(string(b)), digits) {
				t.Errorf("digest %v is not in the file", d)
			}
		}
		if similar := s.similar(base); len(similar) > 3 {
			t.Errorf("%d names are similar", len(similar))
		}
	})
}
