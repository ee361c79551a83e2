# Connections to other daemons.
strait_component(peers
    SOURCES watch.c port.c peers.c peer.c peer_dial.c peer_listen.c peer_hello.c peer_link.c peer_beat.c
    USES strait_proto strait_transport strait_equipment strait_fault PkgConfig::UV)
