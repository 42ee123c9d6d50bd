package schema

// Track says where the vendor of an image publishes its versions. Exactly one of the first four fields is set.
type Track struct {
	Simplestreams *TrackSimplestreams
	CoreOS        *TrackCoreOS
	Listing       *TrackListing
	HTTP          *struct{} // the address of the image itself, whose content changes; Download.ChecksumURL is set

	Keys string // name of the folder below --keys-dir with the keys of the lists; "": the keys of Verify, if there are any
	// Signature is the address of the signature of a list, or its name in the folder of the list. "{file}" stands for the
	// name of the image. "": as for Verify.
	Signature string
}

// TrackSimplestreams is a product of an image server that publishes simplestreams, such as those of Ubuntu, Incus
// and LXD. https://canonical-simplestreams.readthedocs-hosted.com describes most of the format.
type TrackSimplestreams struct {
	URL     string // of the folder that has streams/v1/index.json
	Product string // such as "com.ubuntu.cloud:server:24.04:amd64"
	Item    string // key or file type of the item with the file, such as "disk1.img"
}

// TrackCoreOS is a stream of Fedora CoreOS, or another stream in its format:
// https://github.com/coreos/stream-metadata-go.
type TrackCoreOS struct {
	URL      string // of the metadata of the stream
	Arch     string // such as "x86_64"
	Artifact string // such as "qemu"
	Format   string // such as "qcow2.xz"; "": the only format of the artifact
}

// TrackListing is a folder with files on a web server whose names contain a version.
type TrackListing struct {
	URL string // of the folder; its query is sent only for the list of files
	// Match is a regular expression for the whole path of the file below the folder. Its groups are the parts of the version.
	// It may have one slash: a pattern for a folder, and a pattern or a name for the file in it.
	Match string
	// Checksum is the name of the checksum list beside the file. "{file}" stands for the name of the file.
	Checksum string
}
