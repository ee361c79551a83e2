# Messages, channels and exported pools. Golden frames: test_message --write tests/data/messages.
strait_test(message USES proto LABELS unit SOURCES message_samples.c ALONE)
strait_test(channel USES proto LABELS unit SOURCES message_samples.c)
strait_test(blob USES proto LABELS unit ALONE)
